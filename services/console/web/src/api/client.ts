// Requests to the console's API. Everything is relative to the page, which may stand under any path.

export class ApiError extends Error {
  constructor(
    message: string,
    /** 0: no answer at all. */
    readonly status: number,
  ) {
    super(message)
  }
}

export function apiUrl(path: string): string {
  return new URL(`api/v1/${path}`, document.baseURI).href
}

export type Query = Record<string, string | number | null | undefined>

function withQuery(path: string, query: Query): string {
  const parameters = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') parameters.set(name, String(value))
  }
  const text = parameters.toString()
  return text ? `${path}?${text}` : path
}

function messageOf(body: unknown, status: number): string {
  if (body && typeof body === 'object') {
    const { error, detail } = body as { error?: unknown; detail?: unknown }
    if (typeof error === 'string') return error
    if (error && typeof error === 'object' && 'message' in error) return String(error.message)
    if (typeof detail === 'string') return detail
  }
  return `HTTP ${status}`
}

async function ask<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  // The header tells the console that the request comes from a page that may set headers: from itself.
  const headers: Record<string, string> = { accept: 'application/json', 'x-hintloop-console': '1' }
  const request: RequestInit = { method, credentials: 'same-origin', headers }
  if (signal) request.signal = signal
  if (method !== 'GET') {
    headers['content-type'] = 'application/json'
    request.body = JSON.stringify(body ?? {})
  }
  let reply: Response
  try {
    reply = await fetch(apiUrl(path), request)
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error
    throw new ApiError(String(error instanceof Error ? error.message : error), 0)
  }
  const text = await reply.text()
  let parsed: unknown = null
  try {
    parsed = text ? JSON.parse(text) : null
  } catch {
    if (reply.ok) throw new ApiError(`no JSON from ${path}`, reply.status)
  }
  if (!reply.ok) throw new ApiError(messageOf(parsed, reply.status), reply.status)
  return parsed as T
}

export const get = <T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> =>
  ask<T>('GET', withQuery(path, query), undefined, signal)
export const post = <T>(path: string, body: unknown = {}): Promise<T> => ask<T>('POST', path, body)
export const remove = <T>(path: string): Promise<T> => ask<T>('DELETE', path)
