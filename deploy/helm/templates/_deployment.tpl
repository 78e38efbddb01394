{{/*
One Deployment of ours: (list $ name values). Workers and the two HTTP services differ in ports, probes and how they leave;
what each one is given is listed in "env.of".
*/}}
{{- define "deployment" -}}
{{- $root := index . 0 }}{{- $name := index . 1 }}{{- $values := index . 2 }}
{{- $v := $root.Values }}
{{- $worker := hasPrefix "worker-" $name }}
{{- $port := ternary "health" "http" $worker }}
{{- $asks := has $name (list "worker-cluster" "worker-control" "worker-audit" "worker-observer" "gateway" "scheduler") }}
{{- $catalogue := ne $name "gateway" }}
{{- $temporal := and $v.temporal.tls.clientSecret (ne $name "scheduler") }}
{{- $authorities := include "authorities" $root | trim }}
{{- $scaled := and $values.autoscaling $values.autoscaling.enabled -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "metadata.of" (list $root $name) | nindent 2 }}
spec:
  {{- if not $scaled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  {{- if not $worker }}
  strategy:
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  {{- end }}
  selector:
    matchLabels:
      {{- include "selector.of" $name | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "labels.of" $name | nindent 8 }}
      {{- if or $v.rollOnChange $v.podAnnotations }}
      annotations:
        {{- if $v.rollOnChange }}
        checksum/settings: {{ include "settings" $root | sha256sum }}
        {{- if $catalogue }}
        checksum/catalogue: {{ toJson $v.catalogue | sha256sum }}
        {{- end }}
        {{- end }}
        {{- with $v.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      {{- if not $asks }}
      # It never calls the cluster.
      {{- end }}
      automountServiceAccountToken: {{ $asks }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ ternary 35 30 $worker }}
      {{- with $v.priorityClasses.services.name }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        {{- include "podSecurity" (list $root 65532) | nindent 8 }}
        {{- if and $v.files.volumeClaim (eq $name "worker-export") }}
        # Crawl pods write as user and group 1000.
        supplementalGroups: [1000]
        {{- end }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "selector.of" $name | nindent 14 }}
      {{- range $key := list "nodeSelector" "tolerations" "affinity" }}
      {{- with index $values $key }}
      {{ $key }}:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- end }}
      {{- if and $v.internalTls.enabled (not $worker) }}
      initContainers:
        {{- include "tlsProxy" (list $root $name) | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ ternary "worker" $name $worker }}
          image: {{ include "image" (list $root $values) | quote }}
          args: [{{ if $worker }}worker, {{ trimPrefix "worker-" $name }}{{ else }}{{ $name }}{{ end }}]
          envFrom:
            - configMapRef: {name: crawler-lifecycle}
            {{- if eq $name "worker-webhooks" }}
            - secretRef: {name: {{ $v.secrets.webhooks }}, optional: true}
            {{- end }}
          env:
            {{- include "env.of" (list $root $name) | trim | nindent 12 }}
            {{- range $key, $value := $values.env }}
            - {name: {{ $key }}, value: {{ $value | toString | quote }}}
            {{- end }}
          ports:
            {{- if $worker }}
            - {name: health, containerPort: 8700}
            - {name: metrics, containerPort: 9464}
            {{- else }}
            - {name: http, containerPort: {{ ternary 8500 8600 (eq $name "gateway") }}}
            {{- end }}
          startupProbe:
            httpGet: {path: /healthz, port: {{ $port }}}
            periodSeconds: 2
            timeoutSeconds: 5
            # Five minutes, because a node on which everything starts at once is slow, and a restart makes it slower.
            failureThreshold: 150
          livenessProbe:
            httpGet: {path: /healthz, port: {{ $port }}}
            # A minute, because a late answer on an overloaded node does not mean that the process is dead, and restarts cost most there.
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 6
          readinessProbe:
            {{- if eq $name "gateway" }}
            # Not /readyz, which is 503 for all replicas when Temporal or the database is down, and a Service without ready pods
            # answers nothing. Without Temporal, the gateway still reads and records stops; without the database, it reports this.
            {{- end }}
            httpGet: {path: {{ ternary "/healthz" "/readyz" (eq $name "gateway") }}, port: {{ $port }}}
            periodSeconds: 5
            timeoutSeconds: 5
          {{- if not $worker }}
          lifecycle:
            preStop:
              # Requests that are already in transit are still answered.
              sleep: {seconds: 5}
          {{- end }}
          resources:
            {{- toYaml $values.resources | nindent 12 }}
          securityContext:
            {{- include "containerSecurity" . | nindent 12 }}
          volumeMounts:
            - {name: state, mountPath: /var/lib/crawler-lifecycle}
            - {name: tmp, mountPath: /tmp}
            {{- if $catalogue }}
            - {name: catalogue, mountPath: /etc/crawler-lifecycle, readOnly: true}
            {{- else }}
            - {name: tokens, mountPath: /etc/crawler-lifecycle-tokens, readOnly: true}
            {{- end }}
            {{- if $temporal }}
            - {name: temporal, mountPath: /etc/crawler-lifecycle-temporal, readOnly: true}
            {{- end }}
            {{- if $authorities }}
            - {name: authorities, mountPath: /etc/crawler-lifecycle-authorities, readOnly: true}
            {{- end }}
            {{- if and $v.files.volumeClaim (eq $name "worker-export") }}
            - {name: crawl-files, mountPath: /crawl-files, readOnly: true}
            {{- end }}
      volumes:
        - name: state
          emptyDir: {sizeLimit: 512Mi}
        - name: tmp
          emptyDir: {sizeLimit: 256Mi}
        {{- if $catalogue }}
        - name: catalogue
          configMap: {name: {{ include "catalogue" $root }}}
        {{- else }}
        - name: tokens
          secret:
            secretName: {{ $v.secrets.gateway }}
            items: [{key: tokens.toml, path: tokens.toml}]
        {{- end }}
        {{- if $temporal }}
        - name: temporal
          secret: {secretName: {{ $v.temporal.tls.clientSecret }}}
        {{- end }}
        {{- if $authorities }}
        {{- include "authorities.volume" $root | nindent 8 }}
        {{- end }}
        {{- if and $v.files.volumeClaim (eq $name "worker-export") }}
        - name: crawl-files
          persistentVolumeClaim: {claimName: {{ $v.files.volumeClaim }}, readOnly: true}
        {{- end }}
        {{- if and $v.internalTls.enabled (not $worker) }}
        - name: tls
          secret: {secretName: {{ $v.internalTls.secret }}}
        {{- end }}
{{- end }}

{{/* The secrets that a component gets as variables. It gets no other secrets. */}}
{{- define "env.of" -}}
{{- $name := index . 1 }}{{- $s := (index . 0).Values.secrets }}
{{- if ne $name "scheduler" }}
{{ include "secretEnv" (list "LIFECYCLE_DATABASE__URL" $s.database "url") }}
{{ include "secretEnv" (list "TEMPORAL_API_KEY" $s.temporal "api-key" "optional") }}
{{ include "secretEnv" (list "LIFECYCLE_PAYLOADS__KEYS" $s.payloads "keys" "optional") }}
{{- end }}
{{- if has $name (list "worker-cluster" "gateway" "scheduler") }}
{{ include "secretEnv" (list "LIFECYCLE_SCHEDULER__TOKEN" $s.scheduler "token") }}
{{- end }}
{{- if eq $name "worker-cluster" }}
# The role observer does this.
- {name: LIFECYCLE_WORKER__WAKE_UPS, value: "false"}
{{- end }}
{{- if has $name (list "gateway" "scheduler") }}
{{ include "secretEnv" (list "LIFECYCLE_GATEWAY__TASK_KEY" $s.gateway "task-key") }}
{{- end }}
{{- if eq $name "gateway" }}
{{ include "secretEnv" (list "LIFECYCLE_GATEWAY__LOGIN_KEY" $s.gateway "login-key") }}
{{ include "secretEnv" (list "LIFECYCLE_OIDC__CLIENT_SECRET" $s.gateway "oidc-client-secret" "optional") }}
{{- end }}
{{- if eq $name "worker-workflows" }}
{{ include "secretEnv" (list "LIFECYCLE_PUSHER__APP_ID" $s.pusher "app-id" "optional") }}
{{ include "secretEnv" (list "LIFECYCLE_PUSHER__KEY" $s.pusher "key" "optional") }}
{{ include "secretEnv" (list "LIFECYCLE_PUSHER__SECRET" $s.pusher "secret" "optional") }}
{{- end }}
{{- if has $name (list "worker-workflows" "worker-export" "worker-user-code" "gateway") }}
{{ include "secretEnv" (list "AWS_ACCESS_KEY_ID" $s.cloud "access-key-id" "optional") }}
{{ include "secretEnv" (list "AWS_SECRET_ACCESS_KEY" $s.cloud "secret-access-key" "optional") }}
{{- end }}
{{- end }}

{{/* The proxy that adds TLS, on port 8443 of the pod; it starts before the service and ends after it. */}}
{{- define "tlsProxy" -}}
{{- $v := (index . 0).Values -}}
- name: tls
  image: {{ $v.internalTls.image }}
  restartPolicy: Always
  args:
    - server
    - --listen=0.0.0.0:8443
    - --target=127.0.0.1:{{ ternary 8500 8600 (eq (index . 1) "gateway") }}
    - --cert=/tls/tls.crt
    - --key=/tls/tls.key
    - --disable-authentication
    - --timed-reload=300s
  ports:
    - {name: https, containerPort: 8443}
  resources:
    requests: {cpu: 50m, memory: 32Mi, ephemeral-storage: 16Mi}
    limits: {memory: 128Mi, ephemeral-storage: 64Mi}
  securityContext:
    {{- include "containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
