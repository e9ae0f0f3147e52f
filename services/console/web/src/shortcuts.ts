// Keys. A view adds its own while it is shown; the help overlay lists them all.
import { onBeforeUnmount, onMounted, shallowReactive } from 'vue'
import { singleKeys } from './preferences'

export interface Shortcut {
  keys: string
  /** Key of its description among the translations. */
  label: string
  run: (event: KeyboardEvent) => void
  /** Acts although single keys are switched off. */
  always?: boolean
}

export const shortcuts = shallowReactive(new Set<Shortcut>())

/** Inputs that take no characters. A dialog that was closed a moment ago may leave the keys to one that is hidden. */
const BUTTONS = new Set(['checkbox', 'radio', 'button', 'submit', 'reset'])

function typing(target: EventTarget | null): boolean {
  if (target instanceof HTMLInputElement) return !BUTTONS.has(target.type)
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(SELECT|TEXTAREA)$/.test(target.tagName))
  )
}

function onKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return
  if (typing(event.target) || document.querySelector('dialog[open]')) return
  for (const shortcut of [...shortcuts].reverse()) {
    if (shortcut.keys.split(' ').includes(event.key) && (singleKeys.value || shortcut.always)) {
      event.preventDefault()
      shortcut.run(event)
      return
    }
  }
}

export function startShortcuts(): void {
  addEventListener('keydown', onKey)
}

/** Shortcuts for as long as the component is shown. */
export function useShortcuts(added: Shortcut[]): void {
  onMounted(() => added.forEach((shortcut) => shortcuts.add(shortcut)))
  onBeforeUnmount(() => added.forEach((shortcut) => shortcuts.delete(shortcut)))
}
