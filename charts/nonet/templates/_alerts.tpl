{{/*
The alerts, explained in docs/reference/alerts.md. Schedulers export the same numbers of the namespace, hence max
of theirs; workers each their own, hence sum. With several namespaces each has the label nonet_namespace.
*/}}
{{- define "nonet.alerts" -}}
{{- $here := printf "namespace=%q,nonet_release=%q" .Release.Namespace (include "nonet.fullname" .) -}}
{{- $rules := .Values.monitoring.rules -}}
{{- $leaderTtl := default 30 (default .Values.settings.LEADER_TTL .Values.scheduler.settings.LEADER_TTL) -}}
alerts:
  - alert: NonetNotScraped
    expr: 'absent(nonet_build_info{ {{- $here -}} })'
    for: 5m
    severity: critical
    summary: No worker and no scheduler is scraped
  - alert: NonetNoLeader
    expr: 'max by (nonet_namespace) (nonet_scheduler_has_leader{ {{- $here -}} }) == 0 or absent(nonet_scheduler_has_leader{ {{- $here -}} })'
    for: {{ mul 2 (ceil $leaderTtl) }}s
    severity: critical
    summary: No scheduler leads
  - alert: NonetSchedulerBlind
    expr: 'time() - max by (nonet_namespace) (nonet_namespace_refreshed_timestamp_seconds{ {{- $here -}} }) > 60'
    for: 1m
    severity: critical
    summary: No scheduler has seen Redis for a minute, so what is told of queues is old
  - alert: NonetNotReady
    expr: 'nonet_ready{ {{- $here -}} } == 0 unless on (pod) max by (pod) (nonet_draining{ {{- $here -}} }) == 1'
    for: 10m
    severity: warning
    summary: {{ "{{ $labels.pod }} has not been ready for ten minutes" | quote }}
  - alert: NonetNoWorkers
    expr: >-
      max by (size, nonet_namespace) (nonet_desired_workers{ {{- $here -}} }) > 0
      unless on (size, nonet_namespace) max by (size, nonet_namespace) (nonet_workers{ {{- $here -}} }) > 0
    for: 5m
    severity: critical
    summary: {{ "Tasks of size {{ $labels.size }} wait, and no worker of it is registered" | quote }}
  {{- range $priority, $seconds := $rules.oldestAgeSeconds }}
  - alert: NonetTasksLate
    expr: 'max by (priority, size) (nonet_stream_oldest_age_seconds{ {{- $here -}} ,priority="{{ $priority }}"}) > {{ include "nonet.text" $seconds }}'
    for: 1m
    severity: {{ ternary "critical" "warning" (eq $priority "realtime") }}
    summary: {{ "The oldest task of {{ $labels.priority }}:{{ $labels.size }} has waited for {{ $value | humanizeDuration }}" | quote }}
  {{- end }}
  - alert: NonetNothingEnds
    expr: >-
      max by (size, nonet_namespace) (sum without (priority) (nonet_stream_in_flight{ {{- $here -}} })) > 0
      unless on (size, nonet_namespace) sum by (size, nonet_namespace) (increase(nonet_tasks_finished_total{ {{- $here -}} }[1h])) > 0
    for: 1h
    severity: warning
    summary: {{ "Workers of size {{ $labels.size }} have tasks in hand, and none has ended for an hour" | quote }}
  - alert: NonetDelayedOverdue
    expr: 'max(nonet_delayed_overdue_tasks{ {{- $here -}} }) > 0'
    for: 2m
    severity: critical
    summary: Delayed tasks are due, and nobody promotes them
  - alert: NonetDeadTasks
    expr: 'sum by (task) (increase(nonet_tasks_finished_total{ {{- $here -}} ,outcome="dead"}[10m])) > {{ include "nonet.text" $rules.deadTasks }}'
    for: 0m
    severity: warning
    summary: {{ "{{ $value | humanize }} tasks {{ $labels.task }} failed for good in ten minutes" | quote }}
  - alert: NonetWorkflowsFailed
    expr: 'max(increase(nonet_workflows_ended_total{ {{- $here -}} ,state="failed"}[10m])) > 0'
    for: 0m
    severity: warning
    summary: {{ "{{ $value | humanize }} workflows failed in ten minutes" | quote }}
  - alert: NonetDeadLettersStuck
    expr: 'max(nonet_dying_tasks{ {{- $here -}} }) > 0'
    for: 5m
    severity: critical
    summary: Dead letters cannot be written to SQL
  - alert: NonetTasksCrash
    expr: 'sum by (task) (increase(nonet_task_crashes_total{ {{- $here -}} }[10m])) > 0'
    for: 0m
    severity: warning
    summary: {{ "Child processes die with tasks {{ $labels.task }}" | quote }}
  - alert: NonetLockWait
    expr: 'histogram_quantile(0.95, sum by (le, task) (rate(nonet_lock_wait_seconds_bucket{ {{- $here -}} }[15m]))) > {{ include "nonet.text" $rules.lockWaitSeconds }}'
    for: 15m
    severity: warning
    summary: {{ "Tasks {{ $labels.task }} wait long for locks" | quote }}
  - alert: NonetLeasesLost
    expr: 'sum by (pod) (increase(nonet_leases_lost_total{ {{- $here -}} }[10m])) > 0'
    for: 0m
    severity: warning
    summary: {{ "{{ $labels.pod }} lost leases or locks of running tasks" | quote }}
  - alert: NonetEventLoopBlocked
    expr: 'max by (pod) (nonet_event_loop_lag_seconds{ {{- $here -}} }) > 5'
    for: 5m
    severity: warning
    summary: {{ "The event loop of {{ $labels.pod }} is blocked for seconds" | quote }}
  - alert: NonetConfigInvalid
    expr: 'max by (nonet_namespace) (nonet_config_valid{ {{- $here -}} }) == 0'
    for: 1m
    severity: warning
    summary: The configuration is not applied as it is
  - alert: NonetConfigRefused
    expr: 'max by (pod) (nonet_config_refused{ {{- $here -}} }) == 1'
    for: 5m
    severity: warning
    summary: {{ "{{ $labels.pod }} cannot apply the newest configuration" | quote }}
  - alert: NonetPeriodicBroken
    expr: 'max(nonet_periodic_broken_entries{ {{- $here -}} }) > 0'
    for: 2m
    severity: warning
    summary: Periodic entries cannot be fired
  - alert: NonetPipelineGone
    expr: 'max by (pipeline) (nonet_pipeline_processes{ {{- $here -}} }) == 0'
    for: 5m
    severity: critical
    summary: {{ "No process runs pipeline {{ $labels.pipeline }}" | quote }}
  - alert: NonetRowsLate
    expr: 'max by (pipeline) (nonet_pipeline_oldest_due_seconds{ {{- $here -}} }) > 600 unless max by (pipeline) (nonet_pipeline_paused{ {{- $here -}} }) == 1'
    for: 5m
    severity: warning
    summary: {{ "The oldest row of pipeline {{ $labels.pipeline }} has been due for {{ $value | humanizeDuration }}" | quote }}
  - alert: NonetRowsStale
    expr: 'max by (pipeline) (nonet_pipeline_rows_stale{ {{- $here -}} }) > 0'
    for: 10m
    severity: warning
    summary: {{ "Rows of dead processes of pipeline {{ $labels.pipeline }} are not taken over" | quote }}
  - alert: NonetRowLettersWait
    expr: 'max by (pipeline) (nonet_pipeline_letters_waiting{ {{- $here -}} }) == 1'
    for: 5m
    severity: warning
    summary: {{ "Dead letters of pipeline {{ $labels.pipeline }} cannot be written" | quote }}
  - alert: NonetQuarantined
    expr: 'max(increase(nonet_quarantined_total{ {{- $here -}} }[10m])) > 0'
    for: 0m
    severity: warning
    summary: Bytes that are no task, or are wrongly signed, were put into the quarantine
  - alert: NonetRedisMemory
    expr: 'max(nonet_redis_memory_used_bytes{ {{- $here -}} }) / max(nonet_redis_memory_max_bytes{ {{- $here -}} }) > {{ $rules.redisMemory }}'
    for: 5m
    severity: critical
    summary: Redis is nearly full, and will refuse tasks
{{- end -}}
