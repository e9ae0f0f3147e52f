import { onBeforeUnmount } from 'vue'
import { onEvent, onReopened, type Events } from './live'

/** `onEvent` for as long as the component is shown. */
export function onEventUntilUnmount<K extends keyof Events>(
  name: K,
  listener: (row: Events[K]) => void,
): void {
  onBeforeUnmount(onEvent(name, listener))
}

/** `onReopened` for as long as the component is shown. */
export function onReopenedUntilUnmount(listener: () => void): void {
  onBeforeUnmount(onReopened(listener))
}
