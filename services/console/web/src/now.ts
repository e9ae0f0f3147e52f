// One clock for every "… ago" on the page.
import { ref } from 'vue'

export const now = ref(Date.now())
setInterval(() => (now.value = Date.now()), 5_000)
