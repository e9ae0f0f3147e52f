import { watch } from 'vue'
import { createI18n } from 'vue-i18n'
import en from './locales/en.json'
import zh from './locales/zh.json'
import { language } from './preferences'

export const i18n = createI18n({
  legacy: false,
  locale: language.value,
  fallbackLocale: 'en',
  messages: { en, zh: zh as unknown as typeof en },
})

watch(
  language,
  (value) => {
    i18n.global.locale.value = value
    document.documentElement.lang = value === 'zh' ? 'zh-CN' : 'en'
  },
  { immediate: true },
)
