{{- define "naiad.args" -}}
- {{ printf "--model-repository=%s" (eq .Values.modelRepository.source "url" | ternary .Values.modelRepository.url .Values.modelRepository.path) | quote }}
- --http-port={{ .Values.ports.http }}
- --grpc-port={{ .Values.ports.grpc }}
- --metrics-port={{ .Values.ports.metrics }}
{{- with .Values.server }}
- --drain-seconds={{ .drainSeconds }}
- --exit-timeout-secs={{ .exitTimeoutSeconds }}
- --model-control-mode={{ .modelControlMode }}
{{- range .loadModels }}
- {{ printf "--load-model=%s" . | quote }}
{{- end }}
- {{ printf "--ready-models=%s" .readyModels | quote }}
- --processes={{ .processes }}
- --grpc-max-connection-age={{ mul .grpcMaxConnectionAgeSeconds 1000 }}
{{- end }}
{{- if eq .Values.modelRepository.source "url" }}
- --cloud-cache-max-bytes={{ div (mul .Values.cache.sizeGiB 1073741824 9) 10 }}
{{- end }}
{{- if .Values.apiKeys.enabled }}
- --api-key-file=/etc/naiad/keys/keys
{{- end }}
{{- if .Values.tls.enabled }}
{{- range list "http" "grpc" }}
- --{{ . }}-use-ssl=true
- --{{ . }}-server-cert=/etc/naiad/tls/tls.crt
- --{{ . }}-server-key=/etc/naiad/tls/tls.key
{{- end }}
{{- if .Values.tls.grpcMutual }}
- --grpc-use-ssl-mutual=true
- --grpc-root-cert=/etc/naiad/tls/ca.crt
{{- end }}
{{- end }}
{{- range .Values.server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "naiad.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if .tls.enabled }}
  scheme: HTTPS
  {{- end }}
periodSeconds: {{ .probe.periodSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
timeoutSeconds: {{ .probe.timeoutSeconds }}
{{- end -}}

{{- define "naiad.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.count -}}
{{- $limits := default dict $resources.limits -}}
{{- $_ := set $limits .Values.gpu.resourceName .Values.gpu.count -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Security contexts: the fields of `values` replace the defaults. Sprig's merge would drop `false` and 0. */}}
{{- define "naiad.security" -}}
{{- $result := deepCopy .defaults -}}
{{- range $field, $value := .values -}}
{{- $_ := set $result $field $value -}}
{{- end -}}
{{- toYaml $result -}}
{{- end -}}

{{- define "naiad.podSecurity" -}}
{{- $defaults := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- include "naiad.security" (dict "defaults" $defaults "values" .) -}}
{{- end -}}

{{- define "naiad.containerSecurity" -}}
{{- $defaults := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- include "naiad.security" (dict "defaults" $defaults "values" .) -}}
{{- end -}}

{{- define "naiad.spread" -}}
{{- $root := . -}}
{{- range $key, $topology := dict "hosts" "kubernetes.io/hostname" "zones" "topology.kubernetes.io/zone" }}
{{- with get $root.Values.spread $key }}
- maxSkew: 1
  topologyKey: {{ $topology }}
  whenUnsatisfiable: {{ . }}
  labelSelector:
    matchLabels:
      {{- include "naiad.selectorLabels" $root | nindent 6 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "naiad.volumeMounts" -}}
- {name: temporary, mountPath: /tmp}
- {name: cache, mountPath: /cache}
{{- if has .Values.modelRepository.source (list "pvc" "init") }}
- name: models
  mountPath: {{ .Values.modelRepository.path | quote }}
  readOnly: true
  {{- if eq .Values.modelRepository.source "pvc" }}
  {{- with .Values.modelRepository.pvc.subPath }}
  subPath: {{ . | quote }}
  {{- end }}
  {{- end }}
{{- end }}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: /etc/naiad/tls, readOnly: true}
{{- end }}
{{- if .Values.apiKeys.enabled }}
- {name: keys, mountPath: /etc/naiad/keys, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "naiad.volumes" -}}
- name: temporary
  emptyDir:
    sizeLimit: {{ .Values.temporarySizeGiB }}Gi
{{- if not .Values.cache.persistent }}
- name: cache
  emptyDir:
    sizeLimit: {{ .Values.cache.sizeGiB }}Gi
{{- end }}
{{- if eq .Values.modelRepository.source "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ .Values.modelRepository.pvc.claimName | quote }}
    readOnly: true
{{- else if eq .Values.modelRepository.source "init" }}
- name: models
  emptyDir:
    sizeLimit: {{ .Values.modelRepository.init.sizeGiB }}Gi
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName | quote }}
{{- end }}
{{- if .Values.apiKeys.enabled }}
- name: keys
  secret:
    secretName: {{ include "naiad.keySecretName" . | quote }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
