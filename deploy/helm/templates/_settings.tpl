{{/* The settings of all processes: the settings that other values determine, and then those in `settings`. */}}
{{- define "settings.made" -}}
{{- $ns := .Release.Namespace }}
{{- $scheme := ternary "https" "http" .Values.internalTls.enabled }}
LIFECYCLE_CATALOGUE: /etc/crawler-lifecycle/crawlers.yaml
LIFECYCLE_CLUSTER__KIND: kubernetes
LIFECYCLE_CLUSTER__NAMESPACE: {{ .Values.crawls.namespace }}
LIFECYCLE_CLUSTER__SERVICE_ACCOUNT: crawl
LIFECYCLE_SCHEDULER__URL: {{ $scheme }}://scheduler.{{ $ns }}.svc:8600
LIFECYCLE_SCHEDULER__HOST: 0.0.0.0
LIFECYCLE_SCHEDULER__PORT: "8600"
LIFECYCLE_GATEWAY__URL: {{ $scheme }}://gateway.{{ $ns }}.svc:8500
LIFECYCLE_GATEWAY__HOST: 0.0.0.0
LIFECYCLE_GATEWAY__PORT: "8500"
LIFECYCLE_GATEWAY__CALLERS_FILE: /etc/crawler-lifecycle-tokens/tokens.toml
LIFECYCLE_WORKER__HEALTH_HOST: 0.0.0.0
LIFECYCLE_WORKER__HEALTH_PORT: "8700"
LIFECYCLE_WORKER__METRICS_HOST: 0.0.0.0
LIFECYCLE_WORKER__METRICS_PORT: "9464"
LIFECYCLE_WORKER__GRACE_S: "20"
LIFECYCLE_LOG__FORMAT: json
TEMPORAL_ADDRESS: {{ .Values.temporal.address | quote }}
TEMPORAL_NAMESPACE: {{ .Values.temporal.namespace | quote }}
LIFECYCLE_ARCHIVE__URL: {{ .Values.archive.url | quote }}
LIFECYCLE_EVENTS__URL: {{ .Values.events.url | quote }}
{{- with .Values.files.url }}
LIFECYCLE_CLUSTER__FILES_URL: {{ . | quote }}
{{- end }}
{{- with .Values.files.volumeClaim }}
LIFECYCLE_CLUSTER__VOLUME_CLAIM: {{ . | quote }}
LIFECYCLE_CLUSTER__VOLUME_PATH: /crawl-files
{{- end }}
{{- with .Values.crawls.image }}
LIFECYCLE_CLUSTER__IMAGE: {{ . | quote }}
{{- end }}
{{- with .Values.image.pullSecrets }}
LIFECYCLE_CLUSTER__PULL_SECRETS: {{ toJson . | quote }}
{{- end }}
{{- with .Values.priorityClasses.crawls.name }}
LIFECYCLE_CLUSTER__ONETIME_PRIORITY_CLASS: {{ . }}
LIFECYCLE_CLUSTER__SCHEDULED_PRIORITY_CLASS: {{ . }}
{{- end }}
{{- with .Values.pools }}
LIFECYCLE_POOLS: {{ toJson . | quote }}
{{- end }}
{{- with .Values.oidc }}{{ if .issuer }}
LIFECYCLE_OIDC__ISSUER: {{ .issuer | quote }}
LIFECYCLE_OIDC__CLIENT_ID: {{ .clientId | quote }}
LIFECYCLE_OIDC__ROLES: {{ toJson .roles | quote }}
{{- end }}{{ end }}
{{- if or .Values.ingress.enabled .Values.gatewayApi.enabled }}
LIFECYCLE_GATEWAY__WEB_UI_URL: https://{{ .Values.ingress.enabled | ternary .Values.ingress.host .Values.gatewayApi.host }}
{{- end }}
{{- if .Values.temporal.tls.enabled }}
TEMPORAL_TLS: "true"
{{- with .Values.temporal.tls.serverName }}
TEMPORAL_TLS_SERVER_NAME: {{ . | quote }}
{{- end }}
{{- if .Values.temporal.tls.clientSecret }}
TEMPORAL_TLS_CLIENT_CERT_PATH: /etc/crawler-lifecycle-temporal/tls.crt
TEMPORAL_TLS_CLIENT_KEY_PATH: /etc/crawler-lifecycle-temporal/tls.key
{{- end }}
{{- if .Values.authorities.temporal }}
TEMPORAL_TLS_SERVER_CA_CERT_PATH: /etc/crawler-lifecycle-authorities/temporal.crt
{{- end }}
{{- end }}
{{- if .Values.authorities.storage }}
AWS_CA_BUNDLE: /etc/crawler-lifecycle-authorities/storage.crt
{{- end }}
{{- if .Values.authorities.https }}
SSL_CERT_FILE: /etc/crawler-lifecycle-authorities/https.crt
{{- end }}
{{- end }}

{{- define "settings" -}}
{{- range $name, $value := merge (dict) .Values.settings (fromYaml (include "settings.made" .)) }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{- define "catalogue" -}}
{{- .Values.existingCatalogue | default "crawler-catalogue" }}
{{- end }}
