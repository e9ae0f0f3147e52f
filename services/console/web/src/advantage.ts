// Advantages as steps of a diverging scale. The bounds are fixed, in nats, so that turns can be compared.

/** Size from which each step begins; below the first a token counts as untouched. */
export const BOUNDS = [0.1, 0.5, 1, 2, 5] as const

/** -5 … 5; null without an advantage. */
export function levelOf(advantage: number | null | undefined): number | null {
  if (advantage === null || advantage === undefined || !Number.isFinite(advantage)) return null
  const size = Math.abs(advantage)
  let level = 0
  for (const bound of BOUNDS) if (size >= bound) level += 1
  return advantage < 0 ? -level : level
}

export function levelClass(level: number | null): string {
  if (level === null) return 'level-none'
  if (level === 0) return 'level-0'
  return level < 0 ? `level-n${-level}` : `level-p${level}`
}

/** The share of probability, 0 … 1. */
export function probability(logprob: number | null | undefined): number | null {
  return logprob === null || logprob === undefined ? null : Math.exp(logprob)
}

/** A token's text as it can be seen: blanks, breaks and such as have no text of their own. */
export function visible(text: string | null, id: number): string {
  if (text === null) return `#${id}`
  if (text === '') return '∅'
  return text
    .replaceAll('\r', '␍')
    .replaceAll('\n', '↵')
    .replaceAll('\t', '⇥')
    .replace(/^ +| +$/g, (blanks) => '·'.repeat(blanks.length))
}
