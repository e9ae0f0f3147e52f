import '@fontsource-variable/inter/wght.css'
import './styles/tokens.css'
import './styles/base.css'
import { createApp } from 'vue'
import App from './App.vue'
import { refreshMe } from './access'
import { i18n } from './i18n'
import { startLive } from './live'
import { router } from './router'
import { startShortcuts } from './shortcuts'

startLive()
startShortcuts()
void refreshMe().catch(() => undefined)
createApp(App).use(i18n).use(router).mount('#app')
