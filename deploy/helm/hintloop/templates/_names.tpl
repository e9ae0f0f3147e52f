{{- define "hintloop.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "hintloop.selector" -}}
app.kubernetes.io/name: hintloop
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "hintloop.labels" -}}
{{ include "hintloop.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "hintloop.image" -}}
{{ .root.Values.images.registry }}/{{ .component }}:{{ .root.Values.images.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* What every pod is: nobody, without rights; its service account can do nothing. */}}
{{- define "hintloop.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user | default 10001 }}
  runAsGroup: {{ .user | default 10001 }}
  fsGroup: {{ .user | default 10001 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hintloop.contained" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "hintloop.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "hintloop.selector" . | nindent 8 }}
{{- end }}

{{- define "hintloop.redisUrl" -}}
{{- $redis := .Values.redis -}}
{{- $scheme := ternary "rediss" "redis" $redis.tls -}}
{{- $login := ternary ":${REDIS_PASSWORD}@" "" (ne .Values.secrets.keys.redisPassword "") -}}
{{- if eq $redis.mode "single" -}}
redis://{{ $login }}{{ include "hintloop.name" . }}-redis:6379/0
{{- else if eq $redis.mode "sentinel" -}}
{{ $scheme }}+sentinel://{{ $login }}{{ join "," $redis.hosts }}/{{ $redis.service }}
{{- else if eq $redis.mode "cluster" -}}
{{ $scheme }}+cluster://{{ $login }}{{ join "," $redis.hosts }}
{{- else -}}
{{ $scheme }}://{{ $login }}{{ first $redis.hosts }}/0
{{- end -}}
{{- end }}

{{- define "hintloop.prmUrl" -}}
{{- if .Values.prmEngine.enabled -}}
http://{{ include "hintloop.name" . }}-prm-engine:30000
{{- else -}}
{{ required "prmEngine.url is required with prmEngine.enabled=false" .Values.prmEngine.url }}
{{- end -}}
{{- end }}

{{- /* Secrets stand in files; a service is told the file. `keys` are names of values.secrets.keys. */}}
{{- define "hintloop.secretEnv" -}}
{{- $variables := dict "redisPassword" "REDIS_PASSWORD_FILE" "sentinelPassword" "HINTLOOP_REDIS__SENTINEL_PASSWORD_FILE" "proxyApiKeys" "HINTLOOP_PROXY__API_KEYS_FILE" "policyApiKey" "HINTLOOP_POLICY__API_KEY_FILE" "prmApiKey" "HINTLOOP_PRM__PRM_API_KEY_FILE" "judgeApiKey" "HINTLOOP_PRM__JUDGE_API_KEY_FILE" "prmCallerKey" "HINTLOOP_PRM__CALLER_KEY_FILE" "prmApiKeys" "HINTLOOP_PRM__API_KEYS_FILE" "consolePassword" "HINTLOOP_CONSOLE__PASSWORD_FILE" -}}
{{- $keys := .root.Values.secrets.keys -}}
{{- range .keys }}
{{- $key := get $keys (ternary "prmCallerKey" . (eq . "prmApiKeys")) }}
{{- if $key }}
- name: {{ get $variables . }}
  value: /run/secrets/hintloop/{{ $key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hintloop.env" -}}
- name: HINTLOOP_CONFIG
  value: /etc/hintloop/config.toml:/etc/hintloop/kubernetes.toml
- name: HINTLOOP_SETTINGS
  value: /etc/hintloop/settings.json
{{- with .root.Values.monitoring.otlpEndpoint }}
- name: HINTLOOP_TRACING__OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{ include "hintloop.secretEnv" . }}
{{- end }}

{{- define "hintloop.mounts" -}}
- {name: config, mountPath: /etc/hintloop, readOnly: true}
- {name: secrets, mountPath: /run/secrets/hintloop, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "hintloop.volumes" -}}
- name: config
  configMap: {name: {{ include "hintloop.name" .root }}-config}
- name: secrets
  secret:
    secretName: {{ .root.Values.secrets.existingSecret }}
    defaultMode: 0440
    items:
      {{- $keys := .root.Values.secrets.keys }}
      {{- $wanted := dict }}
      {{- range .keys }}
      {{- with get $keys (ternary "prmCallerKey" . (eq . "prmApiKeys")) }}
      {{- $_ := set $wanted . true }}
      {{- end }}
      {{- end }}
      {{- range keys $wanted | sortAlpha }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp | default "512Mi" }}}
{{- end }}

{{- /* Pods begin anew when what they read at their start has changed. */}}
{{- define "hintloop.checksum" -}}
checksum/config: {{ include (print .Template.BasePath "/config.yaml") . | sha256sum }}
{{- end }}
