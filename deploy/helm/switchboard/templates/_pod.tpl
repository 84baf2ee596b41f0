{{- /* How pods are replaced. Only RollingUpdate has numbers; null in their place is the chart's default. */ -}}
{{- define "switchboard.updateStrategy" -}}
{{- $strategy := .Values.updateStrategy -}}
{{- $other := ternary "Recreate" "OnDelete" (eq .Values.deployment.kind "DaemonSet") -}}
{{- if eq $strategy.type $other -}}
{{- fail (printf "updateStrategy.type: a %s has no strategy %s" .Values.deployment.kind $other) -}}
{{- end -}}
type: {{ $strategy.type }}
{{- if eq $strategy.type "RollingUpdate" }}
{{- $numbers := mergeOverwrite (dict "maxUnavailable" 0 "maxSurge" 1) (default dict $strategy.rollingUpdate) }}
{{- $zeros := list }}
{{- range $numbers }}
{{- if has (toString .) (list "0" "0%") }}{{- $zeros = append $zeros . }}{{- end }}
{{- end }}
{{- if eq (len $zeros) 2 }}
{{- fail "updateStrategy.rollingUpdate: maxUnavailable and maxSurge are both 0, so no pod could be replaced" }}
{{- else if and (eq .Values.deployment.kind "DaemonSet") (not $zeros) }}
{{- fail "updateStrategy.rollingUpdate: of a DaemonSet either maxUnavailable or maxSurge must be 0" }}
{{- end }}
rollingUpdate:
  {{- toYaml $numbers | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Refuses names that two containers or volumes would share, and paths of two mounts. */ -}}
{{- define "switchboard.refuseTwice" -}}
{{- $seen := list -}}
{{- $what := .what -}}
{{- range .names -}}
{{- if has . $seen -}}
{{- fail (printf "the pod would have two %s %q: choose another" $what .) -}}
{{- end -}}
{{- $seen = append $seen . -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.refusePodNames" -}}
{{- $containers := list "switchboard" -}}
{{- if eq .Values.configCheck.run "initContainer" -}}{{- $containers = append $containers "check" -}}{{- end -}}
{{- range concat .Values.deployment.initContainers .Values.deployment.additionalContainers -}}
{{- $containers = append $containers .name -}}
{{- end -}}
{{- include "switchboard.refuseTwice" (dict "what" "containers" "names" $containers) -}}
{{- $volumes := list -}}
{{- range get (include "switchboard.volumes" (dict "root" . "config" "config") | fromYaml) "volumes" -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- include "switchboard.refuseTwice" (dict "what" "volumes" "names" $volumes) -}}
{{- $paths := list -}}
{{- range get (include "switchboard.volumeMounts" . | fromYaml) "volumeMounts" -}}
{{- if not (has .name $volumes) -}}
{{- fail (printf "additionalVolumeMounts: there is no volume %q in deployment.additionalVolumes" .name) -}}
{{- end -}}
{{- $paths = append $paths (clean .mountPath) -}}
{{- end -}}
{{- include "switchboard.refuseTwice" (dict "what" "mounts at" "names" $paths) -}}
{{- end -}}

{{- /* `switchboard check` on the mounted configuration, as the pods would read it. */ -}}
{{- define "switchboard.checkContainer" -}}
- name: check
  image: {{ include "switchboard.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: [check, --config=/etc/switchboard/switchboard.yaml]
  # SWITCHBOARD_LISTEN, _ADMIN and _ALLOW override the configuration, as in the pods.
  {{- with .root.Values.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  securityContext:
    {{- toYaml .root.Values.securityContext | nindent 4 }}
  {{- include "switchboard.volumeMounts" .root | nindent 2 }}
{{- end -}}

{{- /* A pod that checks and ends: `config` is the ConfigMap. */ -}}
{{- define "switchboard.checkPod" -}}
# The account of the release does not exist before the first install, and a check asks no API server.
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
{{- with .root.Values.deployment.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
containers:
  {{- include "switchboard.checkContainer" (dict "root" .root "resources" .resources) | nindent 2 }}
{{- include "switchboard.volumes" (dict "root" .root "config" .config) | nindent 0 }}
{{- with include "switchboard.placement" .root | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- end -}}

{{- /* The volumes: the ConfigMap `config`, the Secrets of `tls` and `access`, and those of the values. */ -}}
{{- define "switchboard.volumes" -}}
{{- $tlsSecrets := include "switchboard.tlsSecrets" .root | fromYamlArray -}}
{{- $accessSecrets := include "switchboard.accessSecrets" .root | fromYamlArray -}}
volumes:
  - name: config
    configMap:
      name: {{ .config | quote }}
  {{- range $index, $secret := $tlsSecrets }}
  - name: tls-{{ $index }}
    secret:
      secretName: {{ $secret | quote }}
  {{- end }}
  {{- range $index, $secret := $accessSecrets }}
  - name: access-{{ $index }}
    secret:
      secretName: {{ $secret | quote }}
  {{- end }}
  {{- range $index, $volume := .root.Values.volumes }}
  {{- with $volume }}
  - name: volume-{{ $index }}
    {{- if eq .type "secret" }}
    secret:
      secretName: {{ .name | quote }}
    {{- else if eq .type "emptyDir" }}
    emptyDir: {}
    {{- else }}
    configMap:
      name: {{ .name | quote }}
    {{- end }}
  {{- end }}
  {{- end }}
{{- with .root.Values.deployment.additionalVolumes }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The paths of the volumes. */ -}}
{{- define "switchboard.volumeMounts" -}}
{{- $tlsSecrets := include "switchboard.tlsSecrets" . | fromYamlArray -}}
volumeMounts:
  - name: config
    mountPath: /etc/switchboard
    readOnly: true
  {{- range $index, $secret := $tlsSecrets }}
  - name: tls-{{ $index }}
    mountPath: {{ printf "/tls/%s" $secret | quote }}
    readOnly: true
  {{- end }}
  {{- range $index, $secret := .Values.access.secrets }}
  - name: access-{{ $index }}
    mountPath: {{ printf "/access/%s" $secret | quote }}
    readOnly: true
  {{- end }}
  {{- range $index, $volume := .Values.volumes }}
  {{- with $volume }}
  - name: volume-{{ $index }}
    mountPath: {{ .mountPath | quote }}
    readOnly: {{ ne .type "emptyDir" }}
  {{- end }}
  {{- end }}
{{- with .Values.additionalVolumeMounts }}
{{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The nodes that the pods may run on. */ -}}
{{- define "switchboard.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The pods, of a Deployment or a DaemonSet. */ -}}
{{- define "switchboard.pod" -}}
{{- include "switchboard.refusePodNames" . -}}
metadata:
  labels:
    {{- toYaml (merge (include "switchboard.selectorLabels" . | fromYaml) (deepCopy .Values.deployment.podLabels)) | nindent 4 }}
  {{- $annotations := deepCopy .Values.deployment.podAnnotations }}
  {{- if .Values.deployment.rollOnConfigChange }}
  {{- $_ := set $annotations "checksum/config" (include "switchboard.config" . | sha256sum) }}
  {{- end }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "switchboard.serviceAccountName" . | quote }}
  automountServiceAccountToken: {{ eq (include "switchboard.cluster" .) "true" }}
  # The kubelet would otherwise set SWITCHBOARD_PORT and the like for our own Service, and the proxy reads
  # SWITCHBOARD_* as configuration.
  enableServiceLinks: false
  # At least as long as a drain may take: {{ include "switchboard.drainSeconds" . }} s.
  terminationGracePeriodSeconds: {{ include "switchboard.gracePeriod" . }}
  {{- $_ := include "switchboard.hostPorts" . }}
  {{- if .Values.deployment.hostNetwork }}
  hostNetwork: true
  {{- end }}
  {{- with .Values.deployment.dnsPolicy }}
  dnsPolicy: {{ . | quote }}
  {{- end }}
  {{- with .Values.deployment.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- if or .Values.deployment.initContainers (eq .Values.configCheck.run "initContainer") }}
  initContainers:
    {{- with .Values.deployment.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- if eq .Values.configCheck.run "initContainer" }}
    {{- include "switchboard.checkContainer" (dict "root" . "resources" .Values.configCheck.resources) | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: switchboard
      image: {{ include "switchboard.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - serve
        - --config=/etc/switchboard/switchboard.yaml
        {{- with .Values.deployment.additionalArguments }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- if or .Values.env (include "switchboard.replicas" .) }}
      env:
        {{- if include "switchboard.replicas" . }}
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- with .Values.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: web
          containerPort: {{ int64 .Values.ports.web.port }}
          {{- with .Values.ports.web.hostPort }}
          hostPort: {{ int64 . }}
          {{- end }}
          protocol: TCP
        {{- if include "switchboard.websecure" . }}
        - name: websecure
          containerPort: {{ int64 .Values.ports.websecure.port }}
          {{- with .Values.ports.websecure.hostPort }}
          hostPort: {{ int64 . }}
          {{- end }}
          protocol: TCP
        {{- end }}
        - name: metrics
          containerPort: {{ int64 .Values.ports.metrics.port }}
          protocol: TCP
      {{- if .Values.deployment.drainHook }}
      lifecycle:
        preStop:
          exec:
            command:
              - /usr/local/bin/switchboard
              - drain
              - --admin={{ .Values.ports.web.address }}:{{ .Values.ports.metrics.port }}
              - --wait
              - --timeout={{ include "switchboard.drainWait" . }}
      {{- end }}
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      {{- include "switchboard.volumeMounts" . | nindent 6 }}
    {{- with .Values.deployment.additionalContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- include "switchboard.volumes" (dict "root" . "config" (include "switchboard.fullname" .)) | nindent 2 }}
  {{- with include "switchboard.placement" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if ne .Values.deployment.kind "DaemonSet" }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- range .Values.topologySpreadConstraints }}
    {{- if not .labelSelector }}
    {{- $_ := set . "labelSelector" (dict "matchLabels" (include "switchboard.selectorLabels" $ | fromYaml)) }}
    {{- end }}
    - {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- else }}
    {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    # pod-template-hash: pods of the last revision may drain for an hour, and must not push the new ones together.
    - maxSkew: 1
      topologyKey: {{ $key }}
      whenUnsatisfiable: ScheduleAnyway
      matchLabelKeys: [pod-template-hash]
      labelSelector:
        matchLabels:
          {{- include "switchboard.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  {{- end }}
{{- end -}}
