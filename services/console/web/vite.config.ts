import { copyFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import vue from '@vitejs/plugin-vue'
import { defineConfig, type Plugin } from 'vite'
import { manifest } from './manifest'

const here = fileURLToPath(new URL('.', import.meta.url))
const out = fileURLToPath(new URL('../src/hintloop_console/static', import.meta.url))

// The font's licence asks to travel with it.
const fontLicence: Plugin = {
  name: 'font-licence',
  apply: 'build',
  closeBundle: () =>
    copyFileSync(`${here}node_modules/@fontsource-variable/inter/LICENSE`, `${out}/inter-license.txt`),
}

export default defineConfig({
  // Relative, so that the page works under any path of a reverse proxy.
  base: './',
  plugins: [vue(), fontLicence, manifest(here, out)],
  define: {
    __VUE_OPTIONS_API__: false,
    __VUE_PROD_DEVTOOLS__: false,
    __VUE_I18N_FULL_INSTALL__: false,
    __VUE_I18N_LEGACY_API__: false,
    __INTLIFY_PROD_DEVTOOLS__: false,
  },
  build: {
    outDir: out,
    emptyOutDir: true,
    target: 'es2022',
    // Nothing is written into the page itself: its content policy forbids it.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
  },
  server: { proxy: { '/api': process.env['CONSOLE'] ?? 'http://127.0.0.1:8080' } },
})
