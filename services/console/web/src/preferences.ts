// What a reader chose, kept in this browser; where nothing was chosen, the system's or the browser's own.
import { computed, ref, watch } from 'vue'

export type Theme = 'system' | 'light' | 'dark'
export type Language = 'en' | 'zh'

function stored(name: string): string | null {
  try {
    return localStorage.getItem(`hintloop.${name}`)
  } catch {
    return null
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(`hintloop.${name}`, value)
  } catch {
    // A browser without storage: the choice lasts as long as the page.
  }
}

const dark = matchMedia('(prefers-color-scheme: dark)')
const systemDark = ref(dark.matches)
dark.addEventListener('change', (event) => (systemDark.value = event.matches))

const storedTheme = stored('theme')
export const theme = ref<Theme>(storedTheme === 'light' || storedTheme === 'dark' ? storedTheme : 'system')
export const isDark = computed(() => theme.value === 'dark' || (theme.value === 'system' && systemDark.value))
watch(isDark, (value) => (document.documentElement.dataset['theme'] = value ? 'dark' : 'light'), {
  immediate: true,
  flush: 'sync',
})
watch(theme, (value) => store('theme', value))

const storedLanguage = stored('language')
const browsers: Language = navigator.languages.find((tag) => /^(en|zh)/i.test(tag))?.startsWith('zh')
  ? 'zh'
  : 'en'
export const language = ref<Language>(
  storedLanguage === 'en' || storedLanguage === 'zh' ? storedLanguage : browsers,
)
watch(language, (value) => store('language', value))

/** Single keys as shortcuts; they can be in the way of speech input. */
export const singleKeys = ref(stored('single-keys') !== 'off')
watch(singleKeys, (value) => store('single-keys', value ? 'on' : 'off'))

export function nextTheme(): void {
  theme.value = isDark.value ? 'light' : 'dark'
}
