{{/* The prefix of all names. At most 44 characters, so that suffixes fit into 63. */}}
{{- define "nonet.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of the release. They never change. */}}
{{- define "nonet.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nonet.labels" -}}
{{ include "nonet.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "nonet.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value as text for an environment variable: Helm would write a million as 1e+06. */}}
{{- define "nonet.text" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{/* The enabled pools, with defaults: name → pool. With several namespaces, each has every pool. */}}
{{- define "nonet.pools" -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.workers -}}
{{- $merged := mustMergeOverwrite (deepCopy $.Values.workerDefaults) (deepCopy $pool) -}}
{{- range $suffix, $namespace := include "nonet.namespaces" $ | fromJson -}}
{{- $own := mustMerge (dict "namespace" $namespace "suffix" $suffix) $merged -}}
{{- if $merged.enabled -}}{{- $_ := set $pools (print $name $suffix) $own -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{/* Suffix of object names → namespace. Both are empty without the value `namespaces`. */}}
{{- define "nonet.namespaces" -}}
{{- $found := dict -}}
{{- range .Values.namespaces -}}{{- $_ := set $found (print "-" .) . -}}{{- end -}}
{{- toJson (default (dict "" "") $found) -}}
{{- end -}}

{{/* The label of the pods of a namespace. Takes the namespace; nothing if it is empty. */}}
{{- define "nonet.ofNamespace" -}}
{{- with . }}nonet/namespace: {{ . }}{{ end -}}
{{- end -}}

{{/* The first reference in a list that names a secret. Order the list from specific to general. */}}
{{- define "nonet.secret" -}}
{{- $found := dict -}}
{{- range . -}}{{- if and .name (not $found) -}}{{- $found = . -}}{{- end -}}{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- define "nonet.bundledSecret" -}}
{{- default (printf "%s-redis" (include "nonet.fullname" .)) .Values.redis.bundled.existingSecret -}}
{{- end -}}

{{/* Secrets of a component: setting → reference. Takes root and secrets. */}}
{{- define "nonet.secrets" -}}
{{- $values := .root.Values -}}
{{- $own := default dict .secrets -}}
{{- $redis := list (default dict $own.redis) $values.redis.secret -}}
{{- if $values.redis.bundled.enabled -}}
{{- $redis = append $redis (dict "name" (include "nonet.bundledSecret" .root) "key" "redis-url") -}}
{{- end -}}
{{- dict
  "REDIS_URL" (include "nonet.secret" $redis | fromJson)
  "DB_URL" (include "nonet.secret" (list (default dict $own.database) $values.database.secret) | fromJson)
  "SIGNING_KEYS" (include "nonet.secret" (list (default dict $own.signing) $values.signing.secret) | fromJson)
  "ENCRYPTION_KEYS" (include "nonet.secret" (list (default dict $own.encryption) $values.encryption.secret) | fromJson)
  | toJson -}}
{{- end -}}

{{/* Task modules; all daemons load the canary. */}}
{{- define "nonet.tasks" -}}
{{- $tasks := .Values.tasks -}}
{{- if .Values.canary.enabled -}}{{- $tasks = append $tasks "nonet.contrib.canary" -}}{{- end -}}
{{- join "," ($tasks | uniq) -}}
{{- end -}}

{{/*
Environment of a container. Takes root, secrets (as of nonet.secrets), settings (a list of mappings; the
last wins), own (settings that the chart computes), extraEnv, namespace (if there are several).
*/}}
{{- define "nonet.env" -}}
{{- $env := dict "NONET_STATE_DIR" "/var/lib/nonet" -}}
{{- with include "nonet.tasks" .root -}}{{- $_ := set $env "NONET_TASKS" . -}}{{- end -}}
{{- range .settings -}}
{{- range $name, $value := . -}}
{{- $_ := set $env (printf "NONET_%s" $name) (include "nonet.text" $value) -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .own -}}
{{- $_ := set $env (printf "NONET_%s" $name) (include "nonet.text" $value) -}}
{{- end -}}
{{- with default (first .root.Values.namespaces) .namespace -}}{{- $_ := set $env "NONET_NAMESPACE" . -}}{{- end -}}
{{- range $setting, $secret := .secrets -}}
{{- if $secret -}}
{{- $_ := set $env (printf "NONET_%s_FILE" $setting) (printf "/etc/nonet/secrets/%s" ($setting | lower | replace "_" "-")) -}}
{{- end -}}
{{- end -}}
{{- if and (not .secrets.REDIS_URL) .root.Values.redis.url (hasKey .secrets "REDIS_URL") -}}
{{- $_ := set $env "NONET_REDIS_URL" .root.Values.redis.url -}}
{{- end -}}
{{- range $name, $value := $env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with concat .root.Values.extraEnv (default list .extraEnv) }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nonet.envFrom" -}}
{{- with concat .root.Values.extraEnvFrom (default list .extraEnvFrom) -}}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* The mounts of all our containers. Takes root and secrets. */}}
{{- define "nonet.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: state, mountPath: /var/lib/nonet}
- {name: secrets, mountPath: /etc/nonet/secrets, readOnly: true}
{{- if and .root.Values.redis.tlsSecretName (hasKey .secrets "REDIS_URL") }}
- {name: redis-tls, mountPath: /etc/nonet/redis-tls, readOnly: true}
{{- end }}
{{- if and .root.Values.database.tlsSecretName .secrets.DB_URL }}
- {name: db-tls, mountPath: /etc/nonet/db-tls, readOnly: true}
{{- end }}
{{- end -}}

{{/* The volumes for these mounts. Takes root, secrets, tmpSize and stateSize. */}}
{{- define "nonet.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmpSize }}}
- name: state
  emptyDir: {sizeLimit: {{ .stateSize }}}
- name: secrets
  projected:
    defaultMode: 0440
    {{- $sources := list }}
    {{- range $setting, $secret := .secrets }}
    {{- if $secret }}
    {{- $item := dict "key" $secret.key "path" ($setting | lower | replace "_" "-") }}
    {{- $sources = append $sources (dict "secret" (dict "name" $secret.name "items" (list $item))) }}
    {{- end }}
    {{- end }}
    sources:
      {{- toYaml $sources | nindent 6 }}
{{- if and .root.Values.redis.tlsSecretName (hasKey .secrets "REDIS_URL") }}
- name: redis-tls
  secret: {secretName: {{ .root.Values.redis.tlsSecretName }}, defaultMode: 0440}
{{- end }}
{{- if and .root.Values.database.tlsSecretName .secrets.DB_URL }}
- name: db-tls
  secret: {secretName: {{ .root.Values.database.tlsSecretName }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* The first fields of each pod's spec. Takes root and serviceAccountName. */}}
{{- define "nonet.pod" -}}
serviceAccountName: {{ .serviceAccountName }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The first fields of each container. */}}
{{- define "nonet.container" -}}
image: {{ include "nonet.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* Port and probes of a daemon. */}}
{{- define "nonet.probes" -}}
ports:
  - {name: metrics, containerPort: {{ .Values.metricsPort }}, protocol: TCP}
  {{- with .extraPorts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  {{- toYaml .Values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
{{- end -}}

{{/*
Slots per worker by size, which schedulers assume while no pod of that size runs. If several pools have a
size, the smallest number applies.
*/}}
{{- define "nonet.slots" -}}
{{- $slots := dict -}}
{{- range include "nonet.pools" . | fromJson -}}
{{- if not .size -}}{{- continue -}}{{- end -}}
{{- $_ := set $slots .size (min (int .concurrency) (get $slots .size | default .concurrency | int)) -}}
{{- end -}}
{{- $texts := list -}}
{{- range $size, $number := $slots -}}
{{- $texts = append $texts (printf "%s:%d" $size (int $number)) -}}
{{- end -}}
{{- join "," $texts -}}
{{- end -}}

{{/* Where a pod runs. Takes component (its values), affinity (the default) and labels. */}}
{{- define "nonet.placement" -}}
{{- with .component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default .affinity .component.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $labels := .labels }}
{{- with .component.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml (merge (deepCopy .) (dict "labelSelector" (dict "matchLabels" $labels))) | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The name of a ServiceAccount. Takes component (its values), root and name (of the component). */}}
{{- define "nonet.serviceAccountName" -}}
{{- with .component.serviceAccount -}}
{{- if .name -}}{{ .name }}{{- else if .create -}}{{ $.name }}{{- else -}}default{{- end -}}
{{- end -}}
{{- end -}}

{{/* A strategy without default fields that belong to another type. */}}
{{- define "nonet.strategy" -}}
{{- toYaml (eq .type "Recreate" | ternary (dict "type" "Recreate") .) -}}
{{- end -}}

{{/* Rules of a NetworkPolicy to one kind of server. Takes to, ports and protocols. */}}
{{- define "nonet.egress" -}}
{{- if .ports }}
- ports:
    {{- range $port := .ports }}
    {{- range $protocol := $.protocols }}
    - {port: {{ $port }}, protocol: {{ $protocol }}}
    {{- end }}
    {{- end }}
  {{- with .to }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Checks that the schema cannot express. */}}
{{- define "nonet.validate" -}}
{{- $pools := include "nonet.pools" . | fromJson -}}
{{- if not $pools -}}{{- fail "workers: no pool is enabled; enable at least one" -}}{{- end -}}
{{- with .Values.redis -}}
{{- $ways := list -}}
{{- if .secret.name -}}{{- $ways = append $ways "redis.secret" -}}{{- end -}}
{{- if .url -}}{{- $ways = append $ways "redis.url" -}}{{- end -}}
{{- if .bundled.enabled -}}{{- $ways = append $ways "redis.bundled" -}}{{- end -}}
{{- if not $ways -}}
{{- fail "redis: there is none; name a Secret in redis.secret.name, set redis.url, or for a trial redis.bundled.enabled=true" -}}
{{- end -}}
{{- if gt (len $ways) 1 -}}
{{- fail (printf "redis: %s are set; choose one" (join " and " $ways)) -}}
{{- end -}}
{{- end -}}
{{- with .Values.config -}}
{{- $ways := list -}}
{{- if .files -}}{{- $ways = append $ways "config.files" -}}{{- end -}}
{{- if .existingConfigMap -}}{{- $ways = append $ways "config.existingConfigMap" -}}{{- end -}}
{{- if .git.url -}}{{- $ways = append $ways "config.git" -}}{{- end -}}
{{- if gt (len $ways) 1 -}}
{{- fail (printf "config: %s are set; choose one" (join " and " $ways)) -}}
{{- end -}}
{{- end -}}
{{- include "nonet.validateLease" (dict "where" "scheduler" "settings" (list .Values.settings .Values.scheduler.settings)) -}}
{{- if contains "@" .Values.redis.url -}}
{{- fail "redis.url: there is a user or password in it; put the URL into a Secret, and name that in redis.secret" -}}
{{- end -}}
{{- if regexMatch "://[^/]*:[^/]*@" .Values.config.git.url -}}
{{- fail "config.git.url: there is a password in it; put it into a Secret, and name that in config.git.credentialsSecret" -}}
{{- end -}}
{{- include "nonet.validateEnv" (dict "where" "extraEnv" "env" .Values.extraEnv) -}}
{{- include "nonet.validateEnv" (dict "where" "scheduler.extraEnv" "env" .Values.scheduler.extraEnv) -}}
{{- include "nonet.validateLabels" (dict "where" "commonLabels" "labels" .Values.commonLabels) -}}
{{- include "nonet.validateLabels" (dict "where" "scheduler.podLabels" "labels" .Values.scheduler.podLabels) -}}
{{- include "nonet.validateWeb" . -}}
{{- range $name, $pool := $pools -}}
{{- if gt (len (printf "%s-worker-%s" (include "nonet.fullname" $) $name)) 63 -}}
{{- fail (printf "workers.%s: the name of its Deployment has more than 63 characters; choose a shorter fullnameOverride" $name) -}}
{{- end -}}
{{- if not (or $pool.size $pool.pipelines) -}}
{{- fail (printf "workers.%s: it has neither a size nor pipelines; set one of them" $name) -}}
{{- end -}}
{{- if and (not $pool.size) (ne $pool.autoscaling.type "none") -}}
{{- fail (printf "workers.%s.autoscaling: a pool without a size has no desired workers; set its replicas" $name) -}}
{{- end -}}
{{- include "nonet.validateEnv" (dict "where" (printf "workers.%s.extraEnv" $name) "env" $pool.extraEnv) -}}
{{- include "nonet.validateLabels" (dict "where" (printf "workers.%s.podLabels" $name) "labels" $pool.podLabels) -}}
{{- include "nonet.validateLease" (dict "where" (printf "workers.%s" $name) "settings" (list $.Values.settings $pool.settings)) -}}
{{- $autoscaling := $pool.autoscaling -}}
{{- if gt (int $autoscaling.min) (int $autoscaling.max) -}}
{{- fail (printf "workers.%s.autoscaling: min (%v) is more than max (%v)" $name $autoscaling.min $autoscaling.max) -}}
{{- end -}}
{{- if and (eq $autoscaling.type "hpa") (lt (int $autoscaling.min) 1) -}}
{{- fail (printf "workers.%s.autoscaling: a HorizontalPodAutoscaler keeps at least one pod; set min to 1, or type to keda" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check that the dashboard can be used; otherwise its pods would not start. */}}
{{- define "nonet.validateWeb" -}}
{{- with .Values.web -}}
{{- if .enabled -}}
{{- if not (or .users.name .settings.WEB_OIDC_ISSUER .settings.WEB_PROXY_HEADER) -}}
{{- fail "web: nobody could log in; name a Secret with users in web.users.name, or set WEB_OIDC_ISSUER or WEB_PROXY_HEADER in web.settings" -}}
{{- end -}}
{{- if not .url -}}
{{- fail "web.url: it is missing; set the address of the dashboard, because only requests for its host are answered" -}}
{{- end -}}
{{- if and (gt (int .replicas) 1) (not .secret.name) -}}
{{- fail "web.secret: it is missing; name a Secret, because all pods of the dashboard need the same one to accept a session" -}}
{{- end -}}
{{- include "nonet.validateEnv" (dict "where" "web.extraEnv" "env" .extraEnv) -}}
{{- include "nonet.validateLabels" (dict "where" "web.podLabels" "labels" .podLabels) -}}
{{- include "nonet.validateLease" (dict "where" "web" "settings" (list $.Values.settings .settings)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Check that the lease exceeds the lifetime of locks; otherwise pods would not start. Takes where and settings. */}}
{{- define "nonet.validateLease" -}}
{{- $all := dict "LEASE" 45 "LOCK_TTL" 30 -}}
{{- range .settings -}}{{- $all = mustMergeOverwrite $all (deepCopy .) -}}{{- end -}}
{{- if ge (float64 $all.LOCK_TTL) (float64 $all.LEASE) -}}
{{- fail (printf "%s: LOCK_TTL (%v s) must be shorter than LEASE (%v s)" .where $all.LOCK_TTL $all.LEASE) -}}
{{- end -}}
{{- end -}}

{{/* Reject settings among environment variables: the schema checks them under `settings`. Takes where and env. */}}
{{- define "nonet.validateEnv" -}}
{{- $where := .where -}}
{{- range .env -}}
{{- if hasPrefix "NONET_" .name -}}
{{- fail (printf "%s: %s is a setting of Nonet; write it under settings, without NONET_" $where .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Reject labels that select pods: the chart sets them. Takes where and labels. */}}
{{- define "nonet.validateLabels" -}}
{{- $where := .where -}}
{{- range $name, $_ := .labels -}}
{{- if or (hasPrefix "app.kubernetes.io/" $name) (hasPrefix "helm.sh/" $name) (hasPrefix "nonet/" $name) -}}
{{- fail (printf "%s: the label %s is set by the chart; choose another" $where $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
