{{- /* One kind of engine: `component` policy-engine or prm-engine, `role` policy or prm, `engine` its values. */}}
{{- define "hintloop.engine" -}}
{{- $root := .root }}
{{- $name := printf "%s-%s" (include "hintloop.name" $root) .component }}
{{- $policy := eq .role "policy" }}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "hintloop.labels" . | nindent 4 }}
spec:
  {{- if $policy }}
  # Workers are listed one by one (policy.engines); a new version goes to each of them.
  clusterIP: None
  publishNotReadyAddresses: true
  {{- end }}
  selector: {{- include "hintloop.selector" . | nindent 4 }}
  ports:
    - {name: http, port: 30000, targetPort: http}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "hintloop.labels" . | nindent 4 }}
spec:
  serviceName: {{ $name }}
  replicas: {{ .engine.replicas }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "hintloop.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "hintloop.labels" . | nindent 8 }}
    spec:
      {{- include "hintloop.pod" . | nindent 6 }}
      {{- include "hintloop.spread" . | nindent 6 }}
      {{- with .engine.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .engine.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 120
      containers:
        - name: engine
          image: {{ get $root.Values.images .engine.kind }}
          imagePullPolicy: {{ $root.Values.images.pullPolicy }}
          command: [bash, /opt/engines/serve.sh, {{ .engine.kind }}, {{ .role }}, kubernetes]
          {{- $ranks := list (ternary "--tp-size" "--tensor-parallel-size" (eq .engine.kind "sglang")) (.engine.gpus | int | toString) }}
          args: {{- toYaml (concat $ranks .engine.extraArgs) | nindent 12 }}
          securityContext: {{- include "hintloop.contained" . | nindent 12 }}
          env:
            - {name: HINTLOOP_PROFILE, value: kubernetes}
            - {name: ENGINE_DTYPE, value: {{ .engine.dtype | quote }}}
            - {name: MAX_MODEL_LEN, value: {{ .engine.maxModelLen | quote }}}
            - {name: HOME, value: /tmp}
            - {name: USER, value: hintloop}
            - {name: PYTHONDONTWRITEBYTECODE, value: "1"}
            {{- if and $policy $root.Values.policyEngine.loraRank }}
            - {name: HINTLOOP_LORA_RANK, value: {{ $root.Values.policyEngine.loraRank | quote }}}
            {{- end }}
            {{- with .engine.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: http, containerPort: 30000}
          startupProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 10
            timeoutSeconds: 8
            # Weights of hundreds of gigabytes, then CUDA graphs.
            failureThreshold: 360
          readinessProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 10
            timeoutSeconds: 8
          # Behind a pause for new weights /health may wait.
          livenessProbe:
            httpGet: {path: /health, port: http}
            periodSeconds: 30
            timeoutSeconds: 20
            failureThreshold: 10
          resources:
            requests: {{- toYaml (merge (dict "nvidia.com/gpu" .engine.gpus) .engine.resources.requests) | nindent 14 }}
            limits: {{- toYaml (merge (dict "nvidia.com/gpu" .engine.gpus) .engine.resources.limits) | nindent 14 }}
          volumeMounts:
            - {name: engines, mountPath: /opt/engines, readOnly: true}
            - {name: model, mountPath: /model, readOnly: true}
            {{- if $policy }}
            - {name: weights, mountPath: /weights, readOnly: true}
            {{- end }}
            - {name: tmp, mountPath: /tmp}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - name: engines
          configMap:
            name: {{ include "hintloop.name" $root }}-engines
            items:
              {{- range $path, $_ := $root.Files.Glob "files/engines/*" }}
              {{- $key := base $path }}
              - {key: {{ $key }}, path: {{ $key | replace "vllm.hintloop_vllm." "vllm/hintloop_vllm/" | replace "vllm.start" "vllm/start" | replace "sglang.start" "sglang/start" }}}
              {{- end }}
        - name: model
          persistentVolumeClaim: {claimName: {{ .claim }}, readOnly: true}
        {{- if $policy }}
        - name: weights
          persistentVolumeClaim: {claimName: {{ include "hintloop.name" $root }}-weights, readOnly: true}
        {{- end }}
        - name: tmp
          emptyDir: {}
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: 16Gi}
{{- end }}
