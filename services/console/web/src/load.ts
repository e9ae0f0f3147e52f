// Something that is fetched: its value, whether it is on its way, and why it did not come.
import { onBeforeUnmount, ref, shallowRef, type Ref, type ShallowRef } from 'vue'
import { ApiError } from './api/client'

export interface Loaded<T> {
  value: ShallowRef<T | null>
  error: Ref<string | null>
  /** 404: there is no such thing. */
  missing: Ref<boolean>
  busy: Ref<boolean>
  refresh: () => Promise<void>
}

/** The newest request wins; one that was overtaken is given up. */
export function useLoaded<T>(fetch: (signal: AbortSignal) => Promise<T>): Loaded<T> {
  const value = shallowRef<T | null>(null)
  const error = ref<string | null>(null)
  const missing = ref(false)
  const busy = ref(false)
  let running: AbortController | null = null

  async function refresh(): Promise<void> {
    running?.abort()
    const own = (running = new AbortController())
    busy.value = true
    try {
      const fetched = await fetch(own.signal)
      if (own !== running) return
      value.value = fetched
      error.value = null
      missing.value = false
    } catch (failure) {
      if (own !== running) return
      missing.value = failure instanceof ApiError && failure.status === 404
      error.value = failure instanceof Error ? failure.message : String(failure)
    } finally {
      if (own === running) busy.value = false
    }
  }

  onBeforeUnmount(() => running?.abort())
  return { value, error, missing, busy, refresh }
}

/** `work` at most once in `ms`, the last call not lost. */
export function throttled(work: () => void, ms: number): () => void {
  let timer: ReturnType<typeof setTimeout> | null = null
  let again = false
  const run = (): void => {
    work()
    timer = setTimeout(() => {
      timer = null
      if (again) {
        again = false
        run()
      }
    }, ms)
  }
  return () => {
    if (timer === null) run()
    else again = true
  }
}
