// Who looks: signed in or not, and what that allows.
import { computed, reactive } from 'vue'
import { ApiError, get, post, remove } from './api/client'
import type { Me } from './api/types'
import { connectLive } from './live'

export const access = reactive({ me: null as Me | null })

export const canWrite = computed(() => access.me?.can_write === true)
/** Nothing is shown before someone has signed in. */
export const closed = computed(() => access.me?.read_requires_password === true && !access.me.signed_in)
export const canSignIn = computed(() => access.me !== null && access.me.password_set)

export async function refreshMe(): Promise<void> {
  access.me = await get<Me>('me')
}

/** True when the password was right. */
export async function signIn(password: string): Promise<boolean> {
  try {
    await post('session', { password })
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return false
    throw error
  }
  await refreshMe()
  connectLive()
  return true
}

export async function signOut(): Promise<void> {
  await remove('session')
  await refreshMe()
}
