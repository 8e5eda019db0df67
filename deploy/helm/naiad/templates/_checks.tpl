{{/* Contradictions among values, which a schema cannot express. All are reported at once. */}}
{{- define "naiad.checks" -}}
{{- $errors := list -}}
{{- $v := .Values -}}
{{- $name := include "naiad.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- $errors = append $errors (printf "the objects would have the name %s, and names of services have small letters, digits and hyphens, and begin with a letter: set fullnameOverride" $name) -}}
{{- end -}}
{{- $stop := add $v.preStopSleepSeconds $v.server.drainSeconds $v.server.exitTimeoutSeconds | int64 -}}
{{- if le (int64 $v.terminationGracePeriodSeconds) $stop -}}
{{- $errors = append $errors (printf "terminationGracePeriodSeconds is %v, but preStopSleepSeconds + server.drainSeconds + server.exitTimeoutSeconds is %v: set terminationGracePeriodSeconds to at least %v, or shorten the others" $v.terminationGracePeriodSeconds $stop (add $stop 1)) -}}
{{- end -}}
{{- $r := $v.modelRepository -}}
{{- if and (eq $r.source "pvc") (not $r.pvc.claimName) -}}
{{- $errors = append $errors "modelRepository.pvc.claimName is empty: name a PersistentVolumeClaim with the models, or choose another modelRepository.source" -}}
{{- end -}}
{{- if and (eq $r.source "url") (not $r.url) -}}
{{- $errors = append $errors "modelRepository.url is empty: set it to s3://bucket/path, gs://bucket/path or as://account/container/path, or choose another modelRepository.source" -}}
{{- end -}}
{{- if and (ne $r.source "url") $r.url -}}
{{- $errors = append $errors (printf "modelRepository.url is set, but modelRepository.source is %s: set modelRepository.source=url, or remove the url" $r.source) -}}
{{- end -}}
{{- if and (eq $r.source "init") (or (not $r.init.image) (not $r.init.command)) -}}
{{- $errors = append $errors "modelRepository.init.image or modelRepository.init.command is empty: name an image and a command that writes the models into modelRepository.path" -}}
{{- end -}}
{{- if and $v.server.loadModels (ne $v.server.modelControlMode "explicit") -}}
{{- $errors = append $errors (printf "server.loadModels needs server.modelControlMode=explicit, which is %s" $v.server.modelControlMode) -}}
{{- end -}}
{{- $owned := dict "model-repository" "modelRepository" "model-store" "modelRepository" "http-port" "ports.http" "grpc-port" "ports.grpc" "metrics-port" "ports.metrics" "drain-seconds" "server.drainSeconds" "exit-timeout-secs" "server.exitTimeoutSeconds" "model-control-mode" "server.modelControlMode" "load-model" "server.loadModels" "ready-models" "server.readyModels" "processes" "server.processes" "grpc-max-connection-age" "server.grpcMaxConnectionAgeSeconds" "cloud-cache-max-bytes" "cache.sizeGiB" "api-key-file" "apiKeys" "http-use-ssl" "tls" "grpc-use-ssl" "tls" "grpc-use-ssl-mutual" "tls.grpcMutual" -}}
{{- range $v.server.extraArgs -}}
{{- $flag := . | trimPrefix "--" | splitList "=" | first -}}
{{- if hasKey $owned $flag -}}
{{- $errors = append $errors (printf "server.extraArgs has --%s, which the chart sets: use the value %s instead" $flag (get $owned $flag)) -}}
{{- end -}}
{{- if has $flag (list "allow-http" "allow-metrics" "http-use-ssl-mutual") -}}
{{- $errors = append $errors (printf "server.extraArgs has --%s, but the probes and services need plain access to HTTP and metrics: remove it" $flag) -}}
{{- end -}}
{{- end -}}
{{- if ne (len (uniq (list (int $v.ports.http) (int $v.ports.grpc) (int $v.ports.metrics)))) 3 -}}
{{- $errors = append $errors "ports.http, ports.grpc and ports.metrics must be different" -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.secretName) -}}
{{- $errors = append $errors "tls.secretName is empty: name a Secret with tls.crt and tls.key (kubectl create secret tls NAME --cert=FILE --key=FILE), or set tls.enabled=false" -}}
{{- end -}}
{{- if and $v.tls.grpcMutual (not $v.tls.enabled) -}}
{{- $errors = append $errors "tls.grpcMutual needs tls.enabled=true" -}}
{{- end -}}
{{- if and $v.apiKeys.enabled (not $v.apiKeys.secretName) (not $v.apiKeys.lines) -}}
{{- $errors = append $errors "apiKeys.secretName and apiKeys.lines are empty: name a Secret with the key `keys` (kubectl create secret generic NAME --from-file=keys=FILE), set apiKeys.lines, or set apiKeys.enabled=false" -}}
{{- end -}}
{{- if and $v.apiKeys.secretName $v.apiKeys.lines -}}
{{- $errors = append $errors "apiKeys.secretName and apiKeys.lines exclude each other: remove one" -}}
{{- end -}}
{{- if and (not $v.apiKeys.enabled) (or $v.apiKeys.secretName $v.apiKeys.lines) -}}
{{- $errors = append $errors "apiKeys.secretName or apiKeys.lines is set, but no key is required: set apiKeys.enabled=true, or remove them" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled $v.keda.enabled -}}
{{- $errors = append $errors "autoscaling.enabled and keda.enabled exclude each other, because KEDA creates an HPA itself: disable one" -}}
{{- end -}}
{{- range $name := list "autoscaling" "keda" -}}
{{- $a := get $v $name -}}
{{- if and $a.enabled (gt (int $a.minReplicas) (int $a.maxReplicas)) -}}
{{- $errors = append $errors (printf "%s.minReplicas is %v, more than %s.maxReplicas %v" $name $a.minReplicas $name $a.maxReplicas) -}}
{{- end -}}
{{- end -}}
{{- if and $v.keda.enabled (not $v.keda.serverAddress) -}}
{{- $errors = append $errors "keda.serverAddress is empty: set it to the address of Prometheus, as http://prometheus.monitoring:9090" -}}
{{- end -}}
{{- if and $v.cache.persistent (ne $v.kind "StatefulSet") -}}
{{- $errors = append $errors "cache.persistent needs kind=StatefulSet, because each replica needs a volume of its own" -}}
{{- end -}}
{{- if and (eq $v.kind "Deployment") (eq (toString $v.rollingUpdate.maxSurge) "0") (eq (toString $v.rollingUpdate.maxUnavailable) "0") -}}
{{- $errors = append $errors "rollingUpdate.maxSurge and rollingUpdate.maxUnavailable are both 0, so that no update can start: set one to 1" -}}
{{- end -}}
{{- range $name := list "http" "grpc" -}}
{{- $i := index $v.ingress $name -}}
{{- if and $i.enabled (not $i.host) -}}
{{- $errors = append $errors (printf "ingress.%s.host is empty: name the host that clients use, or set ingress.%s.enabled=false" $name $name) -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.http.enabled $v.ingress.grpc.enabled $v.ingress.http.host (eq $v.ingress.http.host $v.ingress.grpc.host) -}}
{{- $errors = append $errors (printf "ingress.http.host and ingress.grpc.host are both %s, but one host has one protocol: choose two hosts" $v.ingress.http.host) -}}
{{- end -}}
{{- if and $v.serviceMonitor.enabled $v.apiKeys.enabled $v.apiKeys.lines (not $v.serviceMonitor.keySecretName) -}}
{{- $open := list -}}
{{- range $v.apiKeys.lines -}}
{{- $fields := regexSplit "\\s+" (trim .) -1 -}}
{{- if eq (last $fields) "-" -}}
{{- $open = concat $open (splitList "," (index $fields 1)) -}}
{{- end -}}
{{- end -}}
{{- if not (or (has "metrics" $open) (has "all" $open)) -}}
{{- $errors = append $errors "serviceMonitor.keySecretName is empty, but apiKeys.lines let no client read the metrics without a key, so that Prometheus would report every replica as down: name a Secret with a key for the category metrics, or add the line `prometheus metrics -`" -}}
{{- end -}}
{{- end -}}
{{- if and (or $v.ingress.http.enabled $v.ingress.grpc.enabled) $v.networkPolicy.enabled (not $v.networkPolicy.clients) -}}
{{- $errors = append $errors "networkPolicy.clients is empty, so that only pods of the namespace may connect, and the ingress controller is in another one: name its namespace in networkPolicy.clients" -}}
{{- end -}}
{{- if $errors -}}
{{- fail (printf "values of the chart naiad:\n- %s" (join "\n- " $errors)) -}}
{{- end -}}
{{- end -}}
