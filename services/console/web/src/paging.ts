// A list that is fetched page by page as it is scrolled, and kept up to date by events.
import { computed, onBeforeUnmount, ref, shallowRef } from 'vue'
import { get, type Query } from './api/client'
import type { Page } from './api/types'

/** The first rows are waited for; those behind them come while these are read. */
export const FIRST_PAGE = 200
const PAGE_SIZE = 500

/** `query` is read anew by every `restart`. Rows stand newest first. */
export function usePages<Row>(path: string, query: () => Query, keyOf: (row: Row) => string) {
  const rows = shallowRef<Row[]>([])
  const next = ref<string | null>(null)
  const total = ref<number | null>(null)
  const error = ref<string | null>(null)
  const busy = ref(false)
  const loaded = ref(false)
  let running: AbortController | null = null
  // What was told since the page on its way was asked for: the page may have been read before it.
  const heard = new Map<string, Row>()
  const fresh = new Set<string>()

  /** The rows of a page in their newest form. */
  const upToDate = (page: Row[]): Row[] => page.map((row) => heard.get(keyOf(row)) ?? row)

  /** Rows that came to be while the first page was on its way, and that it does not hold; newest first. */
  function missingIn(page: Row[]): Row[] {
    const held = new Set(page.map(keyOf))
    const missing = [...heard].filter(([key]) => fresh.has(key) && !held.has(key))
    return missing.map(([, row]) => row).reverse()
  }

  async function fetchPage(after: string | null): Promise<void> {
    running?.abort()
    const own = (running = new AbortController())
    busy.value = true
    heard.clear()
    fresh.clear()
    try {
      const limit = after === null ? FIRST_PAGE : PAGE_SIZE
      const page = await get<Page<Row>>(path, { ...query(), after, limit }, own.signal)
      if (own !== running) return
      const missing = after === null ? missingIn(page.rows) : rows.value
      rows.value = [...missing, ...upToDate(page.rows)]
      next.value = page.next
      total.value = page.total ?? total.value
      if (after === null && total.value !== null) total.value += missing.length
      error.value = null
      loaded.value = true
    } catch (failure) {
      if (own === running) error.value = failure instanceof Error ? failure.message : String(failure)
    } finally {
      if (own === running) busy.value = false
    }
  }

  const restart = (): Promise<void> => fetchPage(null)
  const more = async (): Promise<void> => {
    if (next.value !== null && !busy.value) await fetchPage(next.value)
  }

  /** Put a newer form of a row in its place; false when it is not among them. */
  function replace(row: Row): boolean {
    const key = keyOf(row)
    if (busy.value) heard.set(key, row)
    const index = rows.value.findIndex((one) => keyOf(one) === key)
    if (index < 0) return false
    // A new list: the table that was given the old one looks at nothing inside it.
    rows.value = rows.value.with(index, row)
    return true
  }

  /** Put a new row, of which {@link replace} said that it is not among them, before the others. */
  function prepend(row: Row): void {
    if (busy.value) fresh.add(keyOf(row))
    // The first page, which is on its way then, brings it.
    if (!loaded.value) return
    rows.value = [row, ...rows.value]
    if (total.value !== null) total.value += 1
  }

  onBeforeUnmount(() => running?.abort())
  const empty = computed(() => loaded.value && rows.value.length === 0)
  return { rows, next, total, error, busy, loaded, empty, restart, more, replace, prepend }
}
