// What a chat message says, whatever form its content has. Plain text: nothing of it is ever read as HTML.
import type { ChatMessage } from './api/types'

export interface Piece {
  kind: 'text' | 'reasoning' | 'data'
  text: string
}

const shown = (value: unknown): string => (typeof value === 'string' ? value : JSON.stringify(value, null, 2))

function contentPieces(content: ChatMessage['content']): Piece[] {
  if (content === null || content === undefined || content === '') return []
  if (typeof content === 'string') return [{ kind: 'text', text: content }]
  if (!Array.isArray(content)) return [{ kind: 'data', text: shown(content) }]
  return content.map((part) =>
    typeof part === 'string'
      ? { kind: 'text', text: part }
      : typeof part?.text === 'string'
        ? { kind: 'text', text: part.text }
        : { kind: 'data', text: shown(part) },
  )
}

/** A call as `name(arguments)`. */
function callText(call: unknown): string {
  const made = (call as { function?: { name?: unknown; arguments?: unknown } } | null)?.function
  return made?.name === undefined ? shown(call) : `${String(made.name)}(${shown(made.arguments ?? '')})`
}

export function piecesOf(message: ChatMessage): Piece[] {
  const pieces: Piece[] = []
  if (typeof message.reasoning_content === 'string' && message.reasoning_content !== '')
    pieces.push({ kind: 'reasoning', text: message.reasoning_content })
  pieces.push(...contentPieces(message.content))
  const calls = Array.isArray(message.tool_calls) ? message.tool_calls : []
  pieces.push(...calls.map((call): Piece => ({ kind: 'data', text: callText(call) })))
  return pieces
}
