// What a cause means and what mends it, in the reader's language. The console says it in English; Chinese stands here,
// and is fetched by those alone who read it.
import { shallowRef, watchEffect } from 'vue'
import { language } from './preferences'

export interface Explanation {
  cause: string
  fix: string
}

const chinese = shallowRef<Record<string, Explanation>>({})
let asked = false

watchEffect(() => {
  if (language.value !== 'zh' || asked) return
  asked = true
  import('./locales/causes.zh.json').then(
    (module) => (chinese.value = module.default),
    // Without them the English ones stay; the next switch to Chinese asks again.
    () => (asked = false),
  )
})

/** `english` where there is no other: a console may know causes that this page does not. */
export function explained<T extends string | null>(
  cause: string | null,
  part: keyof Explanation,
  english: T,
): T | string {
  const known = language.value === 'zh' && cause !== null ? chinese.value[cause] : undefined
  return known?.[part] ?? english
}
