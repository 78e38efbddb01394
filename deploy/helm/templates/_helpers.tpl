{{/* Labels of an object that belongs to no component, and of one that does: (list $ "gateway"). */}}
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

{{/* Head of an object of a component in the release's namespace: (list $ "gateway"). */}}
{{- define "metadata.of" -}}
name: {{ index . 1 }}
namespace: {{ (index . 0).Release.Namespace }}
labels:
  {{- include "labels.of" (index . 1) | nindent 2 }}
{{- end }}

{{/* Everything that has an account and a Deployment, with its values: name -> values. */}}
{{- define "components" -}}
{{- range $role, $values := .Values.workers }}
worker-{{ $role }}: {{ toJson $values }}
{{- end }}
gateway: {{ toJson .Values.gateway }}
scheduler: {{ toJson .Values.scheduler }}
{{- end }}

{{/* The image of a component: (list $ values). What the component does not set is that of all. */}}
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

{{/* Of our pods; the user is the image's, or whatever the namespace gives. (list $ user) */}}
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

{{/* One variable out of a Secret: (list NAME secret key) or (list NAME secret key "optional"). */}}
{{- define "secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef: {name: {{ index . 1 }}, key: {{ index . 2 }}{{ if gt (len .) 3 }}, optional: true{{ end }}}
{{- end }}

{{/* Authorities that have a Secret: name -> Secret. */}}
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

{{/* Peers of a policy: cidrs, and what is inside of the cluster. Nothing at all: every address. */}}
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

{{/* The internet: everything but what is private, and but the addresses of the list. (list $ addresses) */}}
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
