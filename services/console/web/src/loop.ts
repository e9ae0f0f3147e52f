// What the Loop view shows, read out of one look at the deployment.
import type { Holder, Loop, StreamFigures } from './api/types'

export const FUNNEL = ['captured', 'linked', 'judged', 'hinted', 'scored', 'batched', 'trained'] as const

/** Streams in the order of the pipeline, and the group that reads each. */
export const STREAMS = ['captures', 'turns', 'judged', 'samples', 'drops', 'dead'] as const
export const READERS: Record<string, string> = {
  captures: 'linker',
  turns: 'judge',
  judged: 'teacher',
  samples: 'trainer',
}

/** What holds entries that anyone may claim; no process. */
export const RELEASED = 'released'
/** A consumer that was silent for longer does not count as running. */
const ALIVE_MS = 60_000
/** Where there is nothing to read; before version 7.2 Redis hears nothing of one that finds nothing. */
const ALIVE_WITHOUT_WORK_MS = 600_000

export function running(stream: StreamFigures | undefined): Holder[] {
  const alive = waiting(stream) > 0 ? ALIVE_MS : ALIVE_WITHOUT_WORK_MS
  return (stream?.holders ?? []).filter((holder) => holder.name !== RELEASED && holder.idle_ms < alive)
}

export function waiting(stream: StreamFigures | undefined): number {
  return stream ? Math.max(0, stream.length - stream.pending) : 0
}

export function droppedTotal(loop: Loop): number {
  return Object.values(loop.dropped).reduce((sum, number) => sum + number, 0)
}

/** Turns dropped at a stage. */
export function droppedAt(loop: Loop, stage: string): number {
  return Object.entries(loop.dropped).reduce(
    (sum, [name, number]) => (name.startsWith(`${stage}:`) ? sum + number : sum),
    0,
  )
}

export interface EngineRow {
  url: string
  version: number | null
  behind: boolean
}

export function engineRows(loop: Loop): EngineRow[] {
  return Object.entries(loop.engines).map(([url, text]) => {
    const version = text === '' ? null : Number(text)
    return { url, version, behind: loop.weights.current !== null && version !== loop.weights.current }
  })
}

export function trainerNumber(loop: Loop, name: string): number | null {
  const text = loop.trainer[name]
  if (text === undefined || text === '') return null
  const value = Number(text)
  return Number.isFinite(value) ? value : null
}
