{{/* The labels of an object, with those of its component if it belongs to a component: (list $ "gateway"). */}}
{{- define "labels" -}}
app.kubernetes.io/part-of: crawler-lifecycle
{{- end }}

{{- define "labels.of" -}}
app.kubernetes.io/name: crawler-lifecycle
app.kubernetes.io/component: {{ . }}
app.kubernetes.io/part-of: crawler-lifecycle
{{- end }}

{{- define "selector.of" -}}
app.kubernetes.io/name: crawler-lifecycle
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The metadata of an object of a component in the namespace of the release: (list $ "gateway"). */}}
{{- define "metadata.of" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "labels.of" (index . 1) | nindent 2 }}
{{- end }}

{{/* All components that have an account and a Deployment, with their values: name -> values. */}}
{{- define "components" -}}
{{- range $role, $values := .Values.workers }}
worker-{{ $role }}: {{ toJson $values }}
{{- end }}
gateway: {{ toJson .Values.gateway }}
scheduler: {{ toJson .Values.scheduler }}
{{- end }}

{{/* The image of a component: (list $ values). The common values apply to everything that the component does not set. */}}
{{- define "image" -}}
{{- $root := index . 0 }}
{{- $image := merge (dict) ((index . 1).image | default dict) }}
{{- if not (or $image.tag $image.digest) }}{{ $image = merge $image (pick $root.Values.image "tag" "digest") }}{{ end }}
{{- $repository := $image.repository | default $root.Values.image.repository }}
{{- if $image.digest }}{{ $repository }}@{{ $image.digest }}{{ else }}{{ $repository }}:{{ $image.tag }}{{ end }}
{{- end }}

{{- define "pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The security context of our pods. The image or the namespace determines the user. (list $ user) */}}
{{- define "podSecurity" -}}
runAsNonRoot: true
{{- if eq (index . 0).Values.userIds "image" }}
runAsUser: {{ index . 1 }}
runAsGroup: {{ index . 1 }}
fsGroup: {{ index . 1 }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* One variable from a Secret: (list NAME secret key) or (list NAME secret key "optional"). */}}
{{- define "secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef: {name: {{ index . 1 }}, key: {{ index . 2 }}{{ if gt (len .) 3 }}, optional: true{{ end }}}
{{- end }}

{{/* The certificate authorities that have a Secret: name -> Secret. */}}
{{- define "authorities" -}}
{{- range $name, $secret := .Values.authorities }}
{{- if $secret }}
{{ $name }}: {{ $secret }}
{{- end }}
{{- end }}
{{- end }}

{{- define "authorities.volume" -}}
- name: authorities
  projected:
    sources:
      {{- range $name, $secret := fromYaml (include "authorities" .) }}
      - secret:
          name: {{ $secret }}
          items: [{key: ca.crt, path: {{ $name }}.crt}]
      {{- end }}
{{- end }}

{{/* The peers of a policy: CIDRs, and peers inside the cluster. Without both, every address is allowed. */}}
{{- define "peers" -}}
{{- range .cidrs }}
- ipBlock: {cidr: {{ . | quote }}}
{{- end }}
{{- if or .namespaceSelector .podSelector }}
-{{ with .namespaceSelector }} namespaceSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
 {{ end }}{{ with .podSelector }} podSelector:
    matchLabels:
      {{- toYaml . | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "egress" -}}
{{- $peers := include "peers" . | trim }}
{{- if $peers }}
- to:
    {{- $peers | nindent 4 }}
  ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- else }}
- ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}
{{- end }}

{{/* The internet: all addresses except private addresses and the addresses in the list. (list $ addresses) */}}
{{- define "internet" -}}
{{- $private := concat (index . 0).Values.network.private (index . 1) | uniq }}
{{- $four := list }}
{{- $six := list }}
{{- range $private }}
{{- if contains ":" . }}{{ $six = append $six . }}{{ else }}{{ $four = append $four . }}{{ end }}
{{- end }}
- ipBlock:
    cidr: 0.0.0.0/0
    except:
      {{- range $four }}
      - {{ . }}
      {{- end }}
- ipBlock:
    cidr: ::/0
    except:
      {{- range $six }}
      - {{ . }}
      {{- end }}
{{- end }}
