// The stream of events, and what it says now. One connection for the whole page; it comes back by itself.
import { reactive } from 'vue'
import { apiUrl, get } from './api/client'
import type { Alarms, Loop, StepRow, TurnRow } from './api/types'
import { setClock } from './now'

export type LinkState = 'connecting' | 'open' | 'lost'

export interface Events {
  turn: TurnRow
  step: StepRow
  version: unknown
  alarm: unknown
}

const SILENT_MS = 25_000
const FIRST_RETRY_MS = 1_000
const LAST_RETRY_MS = 15_000
/** A page that nobody sees for so long lets its connection go: browsers allow few to one address. */
const HIDDEN_MS = 60_000

export const live = reactive({
  state: 'connecting' as LinkState,
  /** When the last event came, by this computer's clock. */
  heardMs: 0,
  loop: null as Loop | null,
  /** Why Redis does not answer the console. */
  away: null as string | null,
  alarms: { active: [], past: [] } as Alarms,
})

type Listener<T> = (row: T) => void
const listeners: { [K in keyof Events]: Set<Listener<Events[K]>> } = {
  turn: new Set(),
  step: new Set(),
  version: new Set(),
  alarm: new Set(),
}

/** Call `listener` for every such event; the result ends that. */
export function onEvent<K extends keyof Events>(name: K, listener: Listener<Events[K]>): () => void {
  const all: Set<Listener<Events[K]>> = listeners[name]
  all.add(listener)
  return () => void all.delete(listener)
}

const reopened = new Set<() => void>()

/** Call `listener` when the connection is back: what happened meanwhile may have been missed. */
export function onReopened(listener: () => void): () => void {
  reopened.add(listener)
  return () => void reopened.delete(listener)
}

let source: EventSource | null = null
let retryMs = FIRST_RETRY_MS
let wasOpen = false

function heard(): void {
  live.heardMs = Date.now()
  if (live.state === 'open') return
  live.state = 'open'
  retryMs = FIRST_RETRY_MS
  if (wasOpen) for (const listener of reopened) listener()
  wasOpen = true
}

function takeLoop(look: Partial<Loop>): void {
  live.away = look.away ?? null
  // Before Redis has answered once there is nothing but the reason.
  if (look.funnel === undefined) return
  const loop = look as Loop
  live.loop = loop
  if (live.away === null) setClock(loop.time_ms)
}

async function refreshAlarms(): Promise<void> {
  try {
    live.alarms = await get<Alarms>('alarms')
  } catch {
    // The next event asks again; that the console is away is shown by the connection's state.
  }
}

function open(): void {
  source?.close()
  source = new EventSource(apiUrl('events'))
  source.onopen = heard
  source.onerror = () => {
    live.state = 'lost'
    // The browser itself retries a broken connection, but not one that was answered with an error.
    if (source?.readyState === EventSource.CLOSED) {
      setTimeout(open, retryMs)
      retryMs = Math.min(2 * retryMs, LAST_RETRY_MS)
    }
  }
  const on = (name: string, take: (data: never) => void): void => {
    source?.addEventListener(name, (event) => {
      heard()
      take(JSON.parse((event as MessageEvent<string>).data) as never)
    })
  }
  on('loop', takeLoop)
  on('turn', (row: TurnRow) => listeners.turn.forEach((listener) => listener(row)))
  on('step', (row: StepRow) => listeners.step.forEach((listener) => listener(row)))
  on('version', (row) => listeners.version.forEach((listener) => listener(row)))
  on('alarm', (row) => {
    listeners.alarm.forEach((listener) => listener(row))
    void refreshAlarms()
  })
}

/** Connect now: at the start, and when signing in has opened what was closed. */
export function connectLive(): void {
  retryMs = FIRST_RETRY_MS
  open()
  void refreshAlarms()
}

let hiding: ReturnType<typeof setTimeout> | undefined

function onVisibility(): void {
  clearTimeout(hiding)
  if (document.hidden) {
    hiding = setTimeout(() => {
      source?.close()
      source = null
      live.state = 'connecting'
    }, HIDDEN_MS)
  } else if (source === null) {
    open()
  }
}

export function startLive(): void {
  document.addEventListener('visibilitychange', onVisibility)
  open()
  void refreshAlarms()
  onReopened(() => void refreshAlarms())
  setInterval(() => {
    if (live.state === 'open' && Date.now() - live.heardMs > SILENT_MS) {
      live.state = 'lost'
      open()
    }
  }, 2_000)
}
