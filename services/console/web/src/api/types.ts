// What the console's API gives. Missing numbers are null; log-probabilities and advantages are nats.

export interface Me {
  signed_in: boolean
  can_write: boolean
  policy: string
  version: string | null
  /** There is a password to sign in with. */
  password_set: boolean
  read_requires_password: boolean
}

export interface Holder {
  name: string
  pending: number
  idle_ms: number
}

export interface StreamFigures {
  length: number
  pending: number
  holders: Holder[]
}

export interface Pause {
  reason: string
  since_ms: number
}

export interface Loop {
  funnel: Record<string, number>
  dropped: Record<string, number>
  streams: Record<string, StreamFigures>
  weights: { current: number | null; updating: number | null }
  trainer: Record<string, string>
  engines: Record<string, string>
  paused: Pause | null
  rates_per_minute: Record<string, number>
  time_ms: number
  /** Why Redis does not answer; null while it does. */
  away: string | null
}

export interface Page<Row> {
  rows: Row[]
  next: string | null
  total?: number
}

export interface SessionRow {
  session_id: string
  tenant: string
  turns: number
  first_ms: number
  last_ms: number
  score_mean: number | null
  last_text: string
}

export interface TurnRow {
  turn_id: string
  session_id: string | null
  turn_index: number | null
  time_ms: number
  /** linked, judged, scored, trained or dropped. */
  stage: string
  score: number | null
  hint: string | null
  reason: string | null
  tokens: number | null
  advantage_mean: number | null
  step: number | null
  version: number | null
  text: string
}

export interface Candidate {
  id: number
  text: string | null
  logprob: number | null
}

export interface Token {
  id: number
  text: string | null
  behaviour: number | null
  student: number | null
  teacher: number | null
  advantage: number | null
  top: Candidate[]
}

export interface Vote {
  score: number | null
  hint: string | null
  failed: string | null
}

export interface ContentPart {
  type?: string
  text?: string
  [key: string]: unknown
}

export interface ChatMessage {
  role?: string
  name?: string
  content?: string | ContentPart[] | null
  reasoning_content?: string | null
  tool_calls?: unknown
  tool_call_id?: string
  [key: string]: unknown
}

export interface Span {
  version: number
  start: number
  end: number
}

/** A turn as `/turns/{id}` gives it: `tokens` is a list here, and a count in a row. */
export interface Turn extends Omit<TurnRow, 'tokens'> {
  messages: ChatMessage[] | null
  tools: unknown
  answer: ChatMessage | null
  next_state: ChatMessage[] | null
  votes: Vote[]
  tokens: Token[]
  drop: { stage: string; reason: string; detail: string } | null
  judge: { backend: string; model: string | null } | null
  teacher_model: string | null
  made: Record<string, string | number | null> | null
  spans: Span[]
  sampling: Record<string, unknown> | null
}

export interface StepRow {
  step: number
  /** Training went back to before this step. */
  given_up?: boolean
  version: number | null
  time_ms: number
  figures: Record<string, number | null>
}

export interface AdvantageCounts {
  edges: number[]
  counts: number[]
  share_positive: number | null
  share_negative: number | null
  share_above_10: number | null
}

export interface VersionRow {
  version: number
  step: number | null
  parent: number | null
  time_ms: number | null
  reason?: string
  released: boolean
  current: boolean
  /** The trainer keeps what it needs to go back to it. */
  can_go_back: boolean
  gate: { outcome: string; reasons: string[]; figures: Record<string, number | null> } | null
}

export interface Drops {
  reasons: Record<string, number>
  series: { time_ms: number; counts: Record<string, number> }[]
  examples: { turn_id: string; stage: string; reason: string; detail: string; time_ms: number }[]
}

export interface Alarm {
  cause: string
  since_ms: number
  until_ms?: number | null
  seen: string
  explanation: { cause: string; fix: string } | null
  evidence: Record<string, unknown>
}

export interface Alarms {
  active: Alarm[]
  past: Alarm[]
}

export interface Finding {
  check: string
  outcome: string
  seen: string
  cause: string | null
  explanation: string | null
  fix: string | null
  rows?: Record<string, unknown>[]
}

export interface DoctorState {
  /** A command is configured. */
  available: boolean
  report: DoctorReport | null
  running: boolean
  started_ms: number | null
  ended_ms: number | null
  exit_code: number | null
  error: string | null
}

export interface Asked {
  request_id: string
  /** waiting, accepted, done or refused. */
  state: string
  detail: string
  version: number | null
}

export interface DoctorReport {
  outcome: string
  first_cause: string | null
  stations: { station: string; seconds: number; findings: Finding[] }[]
}
