// Short words about what was just asked for; they go by themselves.
import { reactive } from 'vue'

export interface Notice {
  id: number
  text: string
  kind: 'ok' | 'fail'
}

export const notices = reactive<Notice[]>([])
let last = 0

export function say(text: string, kind: Notice['kind'] = 'ok'): void {
  const notice = { id: ++last, text, kind }
  notices.push(notice)
  setTimeout(
    () => notices.splice(notices.findIndex((one) => one.id === notice.id) >>> 0, 1),
    kind === 'ok' ? 6_000 : 12_000,
  )
}
