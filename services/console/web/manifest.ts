// Says which sources the built page belongs to, so that a test can tell a page that was not built anew.
import { createHash } from 'node:crypto'
import { readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs'
import { join, relative, sep } from 'node:path'
import type { Plugin } from 'vite'

const LEFT_OUT = new Set(['node_modules', '.gitignore'])

function filesUnder(folder: string): string[] {
  return readdirSync(folder)
    .filter((name) => !LEFT_OUT.has(name))
    .flatMap((name) => {
      const path = join(folder, name)
      return statSync(path).isDirectory() ? filesUnder(path) : [path]
    })
}

/** SHA-256 over "path NUL content NUL" of every file, by the byte order of the paths. */
export function digestOf(folder: string, without: readonly string[] = []): string {
  const hash = createHash('sha256')
  const named = filesUnder(folder).map((path) => ({
    path,
    name: relative(folder, path).split(sep).join('/'),
  }))
  named.sort((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)))
  for (const { path, name } of named) {
    if (without.includes(name)) continue
    hash.update(name).update('\0').update(readFileSync(path)).update('\0')
  }
  return hash.digest('hex')
}

export function manifest(sources: string, out: string): Plugin {
  return {
    name: 'hintloop-manifest',
    apply: 'build',
    closeBundle() {
      const digests = { sources: digestOf(sources), built: digestOf(out, ['build.json']) }
      writeFileSync(join(out, 'build.json'), JSON.stringify(digests, null, 2) + '\n')
    },
  }
}
