// Numbers and times as text. A missing number is a dash, never a zero.
import { computed } from 'vue'
import { language } from './preferences'

export const NONE = '–'
const MINUS = '−'

const tag = computed(() => (language.value === 'zh' ? 'zh-CN' : 'en-GB'))
const whole = computed(() => new Intl.NumberFormat(tag.value, { maximumFractionDigits: 0 }))
const time = computed(() => new Intl.DateTimeFormat(tag.value, { timeStyle: 'medium' }))
const dayTime = computed(
  () =>
    new Intl.DateTimeFormat(tag.value, {
      month: 'short',
      day: 'numeric',
      hour: '2-digit',
      minute: '2-digit',
      hour12: false,
    }),
)
const hourMinute = computed(
  () => new Intl.DateTimeFormat(tag.value, { hour: '2-digit', minute: '2-digit', hour12: false }),
)
const full = computed(() => new Intl.DateTimeFormat(tag.value, { dateStyle: 'long', timeStyle: 'long' }))
const relative = computed(() => new Intl.RelativeTimeFormat(tag.value, { numeric: 'auto', style: 'short' }))

type Number_ = number | null | undefined

const missing = (value: Number_): value is null | undefined =>
  value === null || value === undefined || !Number.isFinite(value)

export function count(value: Number_): string {
  return missing(value) ? NONE : whole.value.format(value)
}

/** A rate: one digit behind the point below ten. */
export function rate(value: Number_): string {
  if (missing(value)) return NONE
  return value > 0 && value < 9.95 ? value.toFixed(1) : whole.value.format(value)
}

export function fixed(value: Number_, digits = 2): string {
  if (missing(value)) return NONE
  const text = Math.abs(value).toFixed(digits)
  return value < 0 && Number(text) !== 0 ? `${MINUS}${text}` : text
}

export function signed(value: Number_, digits = 2): string {
  if (missing(value)) return NONE
  const text = Math.abs(value).toFixed(digits)
  if (Number(text) === 0) return text
  return value < 0 ? `${MINUS}${text}` : `+${text}`
}

/** Any figure: four significant digits, powers of ten where they are needed. */
export function figure(value: Number_): string {
  if (missing(value)) return NONE
  if (value === 0) return '0'
  const size = Math.abs(value)
  const text = size >= 1e6 || size < 1e-3 ? size.toExponential(2) : String(Number(size.toPrecision(4)))
  return value < 0 ? `${MINUS}${text}` : text
}

/** A tick of an axis: as many digits as it has, less what binary fractions add. */
export function tick(value: number): string {
  const size = Number(Math.abs(value).toPrecision(12))
  const text = size >= 1e6 || (size > 0 && size < 1e-3) ? size.toExponential() : String(size)
  return value < 0 && size > 0 ? `${MINUS}${text}` : text
}

export function percent(value: Number_, digits = 1): string {
  return missing(value) ? NONE : `${(100 * value).toFixed(digits)} %`
}

export function score(value: Number_): string {
  if (missing(value)) return NONE
  return value > 0 ? '+1' : value < 0 ? `${MINUS}1` : '0'
}

export function clock(ms: Number_): string {
  if (missing(ms)) return NONE
  return Date.now() - ms < 86_400_000 / 2 ? time.value.format(ms) : dayTime.value.format(ms)
}

/** The time of day without seconds, with the day where several are seen together. */
export function minute(ms: number, withDay: boolean): string {
  return (withDay ? dayTime : hourMinute).value.format(ms)
}

export function moment(ms: Number_): string {
  return missing(ms) ? NONE : full.value.format(ms)
}

export function ago(ms: Number_, now: number): string {
  if (missing(ms)) return NONE
  // Clocks differ a little, and nothing happened later than now.
  const seconds = Math.min(0, Math.round((ms - now) / 1000))
  const size = Math.abs(seconds)
  if (size < 60) return relative.value.format(seconds, 'second')
  if (size < 3_600) return relative.value.format(Math.round(seconds / 60), 'minute')
  if (size < 86_400) return relative.value.format(Math.round(seconds / 3_600), 'hour')
  return relative.value.format(Math.round(seconds / 86_400), 'day')
}

/** Milliseconds that something lasted. */
export function lasted(ms: Number_): string {
  if (missing(ms)) return NONE
  if (ms < 1_000) return `${Math.round(ms)} ms`
  if (ms < 60_000) return `${(ms / 1_000).toFixed(1)} s`
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`
}

/** Enough of an id to tell it from others: UUIDv7 begins with the time, so its end is shown. */
export function shortId(id: string): string {
  return id.length > 14 ? `…${id.slice(-8)}` : id
}
