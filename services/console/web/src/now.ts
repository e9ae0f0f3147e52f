// One clock for every "… ago" on the page: Redis' own, as far as it is known, since that is what rows carry.
import { ref } from 'vue'

export const now = ref(Date.now())
let ahead = 0

export function setClock(redisMs: number): void {
  ahead = redisMs - Date.now()
}

setInterval(() => (now.value = Date.now() + ahead), 2_000)
