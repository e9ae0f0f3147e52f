// Which numbers colour a turn's tokens.
import type { Turn } from './api/types'

export interface Coloured {
  values: (number | null)[]
  /** Not trained yet: teacher minus engine, which is what the advantage will be about. */
  preview: boolean
}

/** Where the engine's log-probabilities are at temperature 1, as the teacher's are; else they are not comparable. */
function comparable(turn: Turn): boolean {
  return turn.made?.['behaviour_space'] === 'raw' || turn.sampling?.['temperature'] === 1
}

export function coloured(turn: Turn): Coloured {
  const { tokens } = turn
  if (tokens.some((token) => token.advantage !== null) || !comparable(turn))
    return { values: tokens.map((token) => token.advantage), preview: false }
  const values = tokens.map(({ teacher, behaviour }) =>
    teacher === null || behaviour === null ? null : teacher - behaviour,
  )
  return { values, preview: values.some((value) => value !== null) }
}

export interface Shares {
  mean: number | null
  positive: number | null
  negative: number | null
}

export function sharesOf(values: readonly (number | null)[]): Shares {
  const known = values.filter((value) => value !== null)
  if (known.length === 0) return { mean: null, positive: null, negative: null }
  return {
    mean: known.reduce((sum, value) => sum + value, 0) / known.length,
    positive: known.filter((value) => value > 0).length / known.length,
    negative: known.filter((value) => value < 0).length / known.length,
  }
}
