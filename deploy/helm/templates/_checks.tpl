{{/*
What cannot work is refused before anything is applied: each with the value's name, what it is, and the fix. What has a
wrong type or name is refused by values.schema.json. (Placeholders: those of deploy/, as well.)
*/}}
{{- define "checks" -}}
{{- $v := .Values }}{{- $ns := .Release.Namespace }}
{{- include "checks.placeholders" (list "" (omit $v "catalogue" "existingCatalogue")) }}
{{- range $crawler := $v.catalogue }}
{{- include "checks.placeholders" (list (printf "catalogue[%s].image" $crawler.name) ($crawler.image | default "")) }}
{{- range $read := list "true" "false" }}
{{- if hasKey ($crawler.args | default dict) $read }}{{ include "refuse" (list (printf "catalogue[%s].args" $crawler.name) (printf "has %s, as which names like y, n, on and no are read here" $read) "put that name into quotes") }}{{ end }}
{{- end }}
{{- end }}

{{- if and $v.priorityClasses.create (not (and $v.priorityClasses.services.name $v.priorityClasses.crawls.name)) }}{{ include "refuse" (list "priorityClasses" "has an empty name, and create is true" "give both names, or set create=false") }}{{ end }}
{{- range $name, $said := dict
  "image.repository" (list $v.image.repository "REGISTRY/crawler-lifecycle, as your registry has the image of `make image`")
  "temporal.address" (list $v.temporal.address "HOST:PORT of Temporal's server")
  "archive.url" (list $v.archive.url "s3://BUCKET/PREFIX")
}}
{{- if not (index $said 0) }}{{ include "refuse" (list $name "is empty" (printf "give %s" (index $said 1))) }}{{ end }}
{{- end }}
{{- if not (or $v.image.tag $v.image.digest) }}{{ include "refuse" (list "image.digest" "and image.tag are empty" "give the digest that was tested: --set image.digest=sha256:…") }}{{ end }}
{{- range $name, $values := fromYaml (include "components" .) }}
{{- with $values.image }}
{{- if and .repository (not (or .tag .digest)) }}{{ include "refuse" (list (printf "%s.image" (replace "worker-" "workers." $name)) "has no tag and no digest" "give the digest of that image") }}{{ end }}
{{- end }}
{{- end }}
{{- range $name, $image := dict "image" $v.image "workers.user-code.image" ((index $v.workers "user-code").image | default dict) }}
{{- if eq ($image.tag | default "") "latest" }}{{ include "refuse" (list (printf "%s.tag" $name) "is \"latest\", which is another image tomorrow" "give a version, or better a digest") }}{{ end }}
{{- end }}
{{- if not (or $v.catalogue $v.existingCatalogue) }}{{ include "refuse" (list "catalogue" "and existingCatalogue are empty" "list your crawlers (docs/crawlers.md), or name a ConfigMap with crawlers.yaml") }}{{ end }}
{{- if and $v.catalogue $v.existingCatalogue }}{{ include "refuse" (list "existingCatalogue" (printf "is %q, and catalogue has crawlers, too" $v.existingCatalogue) "give one of the two") }}{{ end }}
{{- if eq $v.crawls.namespace $ns }}{{ include "refuse" (list "crawls.namespace" (printf "is %q, the release's own namespace" $ns) "crawls need a namespace of their own: nothing of ours may change its rules") }}{{ end }}

{{- $made := fromYaml (include "settings.made" .) }}
{{- range $name, $value := $v.settings }}
{{- if hasKey $made $name }}{{ include "refuse" (list (printf "settings.%s" $name) (printf "is %q, and a value of its own makes it %q" $value (index $made $name)) "take it out of settings, and change that value (values.yaml)") }}{{ end }}
{{- if regexMatch "(PASSWORD|SECRET|TOKEN|TASK_KEY|LOGIN_KEY|API_KEY|ACCESS_KEY|PAYLOADS__KEYS|DATABASE__URL|PUSHER__KEY)$" $name }}{{ include "refuse" (list (printf "settings.%s" $name) "is a secret" "values are kept readably: put it into a Secret (values.yaml, `secrets`)") }}{{ end }}
{{- end }}

{{- range $role := list "workflows" "control" }}
{{- if lt (index $v.workers $role "replicas" | int) 1 }}{{ include "refuse" (list (printf "workers.%s.replicas" $role) "is 0" "every run needs one, and two for a node that goes: give 2 or more") }}{{ end }}
{{- end }}
{{- range $role, $worker := $v.workers }}
{{- with $worker.autoscaling }}{{- if .enabled }}
{{- if gt (int .min) (int .max) }}{{ include "refuse" (list (printf "workers.%s.autoscaling.min" $role) (printf "is %d, more than max: %d" (int .min) (int .max)) "give a min of at most max") }}{{ end }}
{{- if and (eq $v.autoscaling.by "hpa") (not .metric) }}{{ include "refuse" (list (printf "workers.%s.autoscaling.metric" $role) "is empty, and autoscaling.by is hpa" "name the external metric that your adapter serves, or set autoscaling.by=keda") }}{{ end }}
{{- if and (eq $v.autoscaling.by "keda") (ne $role "export") (not $v.autoscaling.prometheus) }}{{ include "refuse" (list "autoscaling.prometheus" (printf "is empty, and workers.%s.autoscaling is enabled" $role) "give the address of Prometheus: http://HOST:9090") }}{{ end }}
{{- end }}{{- end }}
{{- end }}

{{- if and $v.oidc.issuer (not (and $v.oidc.clientId $v.oidc.roles)) }}{{ include "refuse" (list "oidc.issuer" (printf "is %q, and clientId or roles are empty" $v.oidc.issuer) "give both (docs/sign-in.md), or leave the issuer out") }}{{ end }}
{{- if and $v.oidc.issuer (not (or $v.ingress.enabled $v.gatewayApi.enabled (hasKey $v.settings "LIFECYCLE_GATEWAY__WEB_UI_URL"))) }}{{ include "refuse" (list "oidc.issuer" (printf "is %q, and the web UI has no address to lead back to" $v.oidc.issuer) "enable ingress or gatewayApi, or give settings.LIFECYCLE_GATEWAY__WEB_UI_URL") }}{{ end }}
{{- if and $v.files.url $v.files.volumeClaim }}{{ include "refuse" (list "files.volumeClaim" (printf "is %q, and files.url is %q" $v.files.volumeClaim $v.files.url) "give one of the two: object storage, or a volume") }}{{ end }}
{{- if and $v.gc.enabled (not $v.files.volumeClaim) }}{{ include "refuse" (list "gc.enabled" "is true, and there is no volume to clear" "set files.volumeClaim; a bucket gets a lifecycle rule instead") }}{{ end }}
{{- if and $v.authorities.temporal (not $v.temporal.tls.enabled) }}{{ include "refuse" (list "authorities.temporal" (printf "is %q, and temporal.tls.enabled is false" $v.authorities.temporal) "set temporal.tls.enabled=true, or leave the authority out") }}{{ end }}
{{- if and $v.temporal.tls.clientSecret (not $v.temporal.tls.enabled) }}{{ include "refuse" (list "temporal.tls.clientSecret" (printf "is %q, and temporal.tls.enabled is false" $v.temporal.tls.clientSecret) "set temporal.tls.enabled=true, or leave the certificate out") }}{{ end }}
{{- if $v.internalTls.enabled }}
{{- range $name := list "image" "secret" }}
{{- if not (index $v.internalTls $name) }}{{ include "refuse" (list (printf "internalTls.%s" $name) "is empty, and internalTls.enabled is true" (ternary "name an image that takes ghostunnel's arguments" "name a Secret with tls.crt and tls.key for gateway.NAMESPACE.svc and scheduler.NAMESPACE.svc" (eq $name "image"))) }}{{ end }}
{{- end }}
{{- if not $v.authorities.https }}{{ include "refuse" (list "authorities.https" "is empty, and internalTls.enabled is true" "name a Secret whose ca.crt has the authority of internalTls.secret, and the public ones that you need") }}{{ end }}
{{- end }}
{{- if and $v.internalTls.enabled $v.ingress.enabled (not $v.ingress.annotations) }}{{ include "refuse" (list "ingress.annotations" "are empty, and internalTls.enabled is true" "configure your controller for a Service that speaks TLS, as nginx.ingress.kubernetes.io/backend-protocol: HTTPS does") }}{{ end }}
{{- if and $v.internalTls.enabled $v.gatewayApi.enabled (not $v.gatewayApi.backendAuthority) }}{{ include "refuse" (list "gatewayApi.backendAuthority" "is empty, and internalTls.enabled is true" "name a ConfigMap whose ca.crt has the authority of internalTls.secret") }}{{ end }}

{{- if and $v.ingress.enabled $v.gatewayApi.enabled }}{{ include "refuse" (list "gatewayApi.enabled" "is true, and ingress.enabled, too" "choose one of the two") }}{{ end }}
{{- range $where, $way := dict "ingress" $v.ingress "gatewayApi" $v.gatewayApi }}
{{- if and $way.enabled (not $way.host) }}{{ include "refuse" (list (printf "%s.host" $where) (printf "is empty, and %s.enabled is true" $where) "give the name under which people open the web UI") }}{{ end }}
{{- end }}
{{- if and $v.ingress.enabled (not $v.ingress.tlsSecret) }}{{ include "refuse" (list "ingress.tlsSecret" "is empty, and ingress.enabled is true" "name a Secret of type kubernetes.io/tls: tokens would be readable on their way") }}{{ end }}
{{- with $v.gatewayApi }}{{- if .enabled }}
{{- if and .className .parent.name }}{{ include "refuse" (list "gatewayApi.className" (printf "is %q, and gatewayApi.parent.name is %q" .className .parent.name) "name a Gateway of yours, or let one be made of a class") }}{{ end }}
{{- if not (or .className .parent.name) }}{{ include "refuse" (list "gatewayApi.parent.name" "and gatewayApi.className are empty" "name a Gateway of yours, or the class of one that is made") }}{{ end }}
{{- if and .className (not .tlsSecret) }}{{ include "refuse" (list "gatewayApi.tlsSecret" "is empty, and gatewayApi.className makes a Gateway" "name a Secret of type kubernetes.io/tls") }}{{ end }}
{{- end }}{{- end }}
{{- if le (int $v.priorityClasses.services.value) (int $v.priorityClasses.crawls.value) }}{{ include "refuse" (list "priorityClasses.services.value" (printf "is %d, not above that of crawls: %d" (int $v.priorityClasses.services.value) (int $v.priorityClasses.crawls.value)) "give the services more: crawls would displace them") }}{{ end }}
{{- range $name := list "temporal" "database" "storage" "apiServer" }}
{{- range (index $v.network $name).cidrs }}
{{- if hasSuffix "/0" . }}{{ include "refuse" (list (printf "network.%s.cidrs" $name) (printf "has %q" .) "an empty list lets every address through") }}{{ end }}
{{- end }}
{{- end }}
{{- range $queue, $of := $v.kueue.localQueues }}
{{- if and $v.kueue.clusterQueues (not (hasKey $v.kueue.clusterQueues $of)) }}{{ include "refuse" (list (printf "kueue.localQueues.%s" $queue) (printf "is %q, which kueue.clusterQueues does not have" $of) "name one of these, or make none of them here") }}{{ end }}
{{- end }}
{{- end }}

{{/* (list value's-name what-it-is fix) */}}
{{- define "refuse" -}}
{{- fail (printf "\n\n  %s %s.\n  Fix: %s.\n" (index . 0) (index . 1) (index . 2)) }}
{{- end }}

{{/* Example names and addresses (RFC 2606, RFC 5737) in any text of the values, which must be replaced. (list name value) */}}
{{- define "checks.placeholders" -}}
{{- $name := index . 0 }}{{- $value := index . 1 }}
{{- if kindIs "map" $value }}
{{- range $key, $below := $value }}{{ include "checks.placeholders" (list (ternary $key (printf "%s.%s" $name $key) (eq $name "")) $below) }}{{ end }}
{{- else if kindIs "slice" $value }}
{{- range $n, $below := $value }}{{ include "checks.placeholders" (list (printf "%s[%d]" $name $n) $below) }}{{ end }}
{{- else if kindIs "string" $value }}
{{- if regexMatch "(^|[./@-])example([./:-]|$)|//example-|sha256:0{64}|(^|[^0-9])(203\\.0\\.113|198\\.51\\.100|192\\.0\\.2)\\." $value }}{{ include "refuse" (list $name (printf "is %q, which only stands for a value of yours" $value) "put in your own") }}{{ end }}
{{- end }}
{{- end }}
