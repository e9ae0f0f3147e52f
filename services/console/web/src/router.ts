// Where each view stands. Addresses behind "#": the server needs to know none of them.
import { createRouter, createWebHashHistory } from 'vue-router'
import LoopView from './views/LoopView.vue'

export const VIEWS = ['loop', 'sessions', 'learning', 'drops', 'doctor'] as const
export type View = (typeof VIEWS)[number]

export const router = createRouter({
  history: createWebHashHistory(),
  routes: [
    { path: '/', redirect: '/loop' },
    { path: '/loop', name: 'loop', component: LoopView, meta: { view: 'loop' } },
    {
      path: '/sessions',
      name: 'sessions',
      component: () => import('./views/SessionsView.vue'),
      meta: { view: 'sessions' },
    },
    {
      path: '/turns',
      name: 'turns',
      component: () => import('./views/TurnsView.vue'),
      meta: { view: 'sessions' },
    },
    {
      path: '/turns/:id',
      name: 'turn',
      component: () => import('./views/TurnView.vue'),
      meta: { view: 'sessions' },
    },
    {
      path: '/learning',
      name: 'learning',
      component: () => import('./views/LearningView.vue'),
      meta: { view: 'learning' },
    },
    {
      path: '/drops',
      name: 'drops',
      component: () => import('./views/DropsView.vue'),
      meta: { view: 'drops' },
    },
    {
      path: '/doctor',
      name: 'doctor',
      component: () => import('./views/DoctorView.vue'),
      meta: { view: 'doctor' },
    },
    { path: '/:rest(.*)', redirect: '/loop' },
  ],
  scrollBehavior: (to, from, saved) => saved ?? (to.path === from.path ? false : { top: 0 }),
})
