{{- define "switchboard.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* The release's name when it already says switchboard, else both; 55 leaves room for "-metrics". */ -}}
{{- define "switchboard.fullname" -}}
{{- $name := include "switchboard.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "switchboard.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "switchboard.serviceAccountName" -}}
{{- default (ternary (include "switchboard.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "switchboard.selectorLabels" -}}
app.kubernetes.io/name: {{ include "switchboard.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* The pods of the check have other labels than the proxy's, or Services and policies would select them. */ -}}
{{- define "switchboard.checkLabels" -}}
app.kubernetes.io/name: {{ include "switchboard.name" . | trunc 57 | trimSuffix "-" }}-check
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "switchboard.labels" -}}
{{ include "switchboard.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "switchboard.image" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}

{{- /* Whole seconds of a duration such as "1h", "90s" or "1h30m"; a part of a second counts as one. */ -}}
{{- define "switchboard.seconds" -}}
{{- $text := .value | toString -}}
{{- if not (regexMatch "^([0-9]+(ms|s|m|h|d))+$" $text) -}}
{{- fail (printf "%s: %q is not a duration such as 5s, 5m or 1h30m" .key $text) -}}
{{- end -}}
{{- $unit := dict "s" 1 "m" 60 "h" 3600 "d" 86400 -}}
{{- $total := 0 -}}
{{- range regexFindAll "[0-9]+(ms|s|m|h|d)" $text -1 -}}
{{- $number := regexFind "[0-9]+" . | int64 -}}
{{- if hasSuffix "ms" . -}}
{{- $total = add $total (div (add $number 999) 1000) -}}
{{- else -}}
{{- $total = add $total (mul $number (get $unit (regexFind "[smhd]$" .))) -}}
{{- end -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{- /* The hard bound of a drain: delay + timeout + spread, with the binary's defaults where the file says nothing. */ -}}
{{- define "switchboard.drainSeconds" -}}
{{- $drain := default dict .Values.config.drain -}}
{{- $sum := 0 -}}
{{- range $key, $default := dict "delay" "5s" "timeout" "1h" "spread" "5m" -}}
{{- $value := default $default (get $drain $key) -}}
{{- $sum = add $sum (include "switchboard.seconds" (dict "key" (printf "config.drain.%s" $key) "value" $value) | int64) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* How long the preStop hook waits: until the drain begins to close the tunnels that are left. */ -}}
{{- define "switchboard.drainWait" -}}
{{- $drain := default dict .Values.config.drain -}}
{{- $spread := include "switchboard.seconds" (dict "key" "config.drain.spread" "value" (default "5m" $drain.spread)) -}}
{{- sub (include "switchboard.drainSeconds" . | int64) (int64 $spread) -}}s
{{- end -}}

{{- define "switchboard.gracePeriod" -}}
{{- $drain := include "switchboard.drainSeconds" . | int64 -}}
{{- $asked := .Values.deployment.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $asked -}}
{{- add $drain 30 -}}
{{- else if lt (int64 $asked) $drain -}}
{{- fail (printf "deployment.terminationGracePeriodSeconds is %d, but a drain may take %d s (config.drain: delay + timeout + spread)" (int64 $asked) $drain) -}}
{{- else -}}
{{- int64 $asked -}}
{{- end -}}
{{- end -}}

{{- /* True if websecure listens: some Service or the node has it. */ -}}
{{- define "switchboard.websecure" -}}
{{- with .Values.ports.websecure -}}
{{- if or (has true (values .expose)) .hostPort -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* True if pods take ports of their nodes. */ -}}
{{- define "switchboard.hostPorts" -}}
{{- if .Values.deployment.hostNetwork -}}
{{- range $name := list "web" "websecure" -}}
{{- with get (get $.Values.ports $name) "hostPort" -}}
{{- fail (printf "ports.%s.hostPort has no effect with deployment.hostNetwork: the port of the node is ports.%s.port" $name $name) -}}
{{- end -}}
{{- end -}}
true
{{- else if or .Values.ports.web.hostPort .Values.ports.websecure.hostPort -}}
true
{{- end -}}
{{- end -}}

{{- /* One entry of `listen`. */ -}}
{{- define "switchboard.listener" -}}
{{- $address := printf "%s:%d" .port.address (int .port.port) -}}
{{- $listener := dict "address" $address -}}
{{- if ne .tls "off" -}}
{{- $_ := set $listener "tls" .tls -}}
{{- end -}}
{{- if ne .port.proxyProtocol.mode "off" -}}
{{- if not .port.proxyProtocol.trustedIPs -}}
{{- fail (printf "ports.%s.proxyProtocol needs trustedIPs: anyone could claim any address" .name) -}}
{{- end -}}
{{- $_ := set $listener "proxy_protocol" .port.proxyProtocol.mode -}}
{{- $_ := set $listener "trusted_proxies" .port.proxyProtocol.trustedIPs -}}
{{- end -}}
{{- if ne .port.refusals "http" -}}
{{- $_ := set $listener "refusals" .port.refusals -}}
{{- end -}}
{{- toYaml $listener -}}
{{- end -}}

{{- /* The Secrets of `tls`, each once: the authorities may be in that of a certificate. */ -}}
{{- define "switchboard.tlsSecrets" -}}
{{- with .Values.tls -}}
{{- concat .certificates (list .clientCA.secretName .crl.secretName) | compact | uniq | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* The section `tls` of the configuration file. */ -}}
{{- define "switchboard.tls" -}}
{{- $tls := dict -}}
{{- with .Values.tls -}}
{{- $certificates := list -}}
{{- range .certificates -}}
{{- $certificates = append $certificates (dict "cert" (printf "/tls/%s/tls.crt" .) "key" (printf "/tls/%s/tls.key" .)) -}}
{{- end -}}
{{- if $certificates -}}
{{- $_ := set $tls "certificates" $certificates -}}
{{- end -}}
{{- if ne .clientAuth "off" -}}
{{- $_ := set $tls "client_auth" .clientAuth -}}
{{- end -}}
{{- with .clientCA.secretName -}}
{{- $_ := set $tls "client_ca" (printf "/tls/%s/%s" . $.Values.tls.clientCA.key) -}}
{{- end -}}
{{- with .crl.secretName -}}
{{- $_ := set $tls "crl" (printf "/tls/%s/%s" . $.Values.tls.crl.key) -}}
{{- end -}}
{{- end -}}
{{- $tls = mergeOverwrite $tls (deepCopy (default dict .Values.config.tls)) -}}
{{- if and (ne (default "off" $tls.client_auth) "off") (not $tls.client_ca) -}}
{{- fail "tls.clientAuth needs tls.clientCA.secretName: nobody could be known by a certificate" -}}
{{- end -}}
{{- toYaml $tls -}}
{{- end -}}

{{- /* The section `access` of the configuration file: that of the values without the chart's own keys, then `config.access`
over it. Empty for the default, `open`. */ -}}
{{- define "switchboard.access" -}}
{{- $own := omit (deepCopy .Values.access) "clusterRole" "secrets" -}}
{{- $access := mergeOverwrite $own (deepCopy (default dict .Values.config.access)) -}}
{{- if ne (toJson $access) (toJson (dict "mode" "open")) -}}
{{- toYaml $access -}}
{{- end -}}
{{- end -}}

{{- /* True if the API server is asked about users. */ -}}
{{- define "switchboard.reviews" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- if (default dict $access.kubernetes).enabled -}}true{{- end -}}
{{- end -}}

{{- /* True if tickets are read from the cluster. */ -}}
{{- define "switchboard.tickets" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- if (default dict $access.tickets).enabled -}}true{{- end -}}
{{- end -}}

{{- /* True if the pods watch their own Service, for anchors that dial in. */ -}}
{{- define "switchboard.replicas" -}}
{{- if eq (dig "replicas" "" (default dict .Values.config.anchors) | toString) "auto" -}}true{{- end -}}
{{- end -}}

{{- /* True if the pods ask the API server at all. */ -}}
{{- define "switchboard.cluster" -}}
{{- $kubernetes := include "switchboard.kubernetes" . | fromYaml -}}
{{- if or $kubernetes.enabled (include "switchboard.reviews" .) (include "switchboard.tickets" .) (include "switchboard.replicas" .) -}}true{{- end -}}
{{- end -}}

{{- /* The permission that a user needs, as a rule of a ClusterRole; nothing for port-forward, which `edit` has. */ -}}
{{- define "switchboard.accessRule" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- $check := default "ssh" (default dict $access.kubernetes).check -}}
{{- if kindIs "map" $check -}}
{{- $resource := printf "%s/%s" $check.resource (default "" $check.subresource) | trimSuffix "/" -}}
- apiGroups: [{{ default "" $check.group | quote }}]
  resources: [{{ $resource }}]
  verbs: [{{ $check.verb }}]
{{- else if eq $check "ssh" -}}
- apiGroups: [""]
  resources: [services/ssh]
  verbs: [create]
{{- end -}}
{{- end -}}

{{- /* The ports of the issuers whose keys come by a URL, each once. */ -}}
{{- define "switchboard.issuerPorts" -}}
{{- $ports := list -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- range default list $access.oidc -}}
{{- if regexMatch "^https?://" .jwks -}}
{{- $authority := regexReplaceAll "^https?://([^/]*).*$" .jwks "${1}" -}}
{{- $port := regexFind ":[0-9]+$" $authority | trimPrefix ":" -}}
{{- $ports = append $ports (int (default (ternary "443" "80" (hasPrefix "https:" .jwks)) $port)) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toYaml -}}
{{- end -}}

{{- /* The Secrets of `access`. A path in a Secret that is not mounted is a mistake that only the pod would find. */ -}}
{{- define "switchboard.accessSecrets" -}}
{{- $secrets := .Values.access.secrets -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- $paths := list (default "" (default dict $access.users).file) -}}
{{- range default list $access.oidc -}}
{{- $paths = concat $paths (list .jwks (default "" .ca)) -}}
{{- end -}}
{{- range $path := $paths -}}
{{- if hasPrefix "/access/" $path -}}
{{- $secret := index (splitList "/" $path) 2 -}}
{{- if not (has $secret $secrets) -}}
{{- fail (printf "%s is in no Secret of access.secrets: add %q" $path $secret) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $secrets -}}
{{- end -}}

{{- /* The configuration file: what `ports`, `tls` and `access` say, then `config` over it. */ -}}
{{- define "switchboard.config" -}}
{{- $tls := include "switchboard.tls" . | fromYaml -}}
{{- $ports := .Values.ports -}}
{{- if not $tls.certificates -}}
{{- if ne $ports.web.tls "off" -}}
{{- fail (printf "ports.web.tls is %s: it needs tls.certificates" $ports.web.tls) -}}
{{- else if include "switchboard.websecure" . -}}
{{- fail "ports.websecure.expose.default (or another Service, or hostPort) needs tls.certificates" -}}
{{- end -}}
{{- end -}}
{{- $listen := list (include "switchboard.listener" (dict "name" "web" "port" $ports.web "tls" $ports.web.tls) | fromYaml) -}}
{{- if include "switchboard.websecure" . -}}
{{- $listen = append $listen (include "switchboard.listener" (dict "name" "websecure" "port" $ports.websecure "tls" "required") | fromYaml) -}}
{{- end -}}
{{- $derived := dict "listen" $listen "admin" (printf "%s:%d" $ports.web.address (int $ports.metrics.port)) -}}
{{- if $tls -}}
{{- $_ := set $derived "tls" $tls -}}
{{- end -}}
{{- with include "switchboard.access" . | fromYaml -}}
{{- $_ := set $derived "access" . -}}
{{- end -}}
{{- if include "switchboard.replicas" . -}}
{{- $_ := set $derived "anchors" (dict "service" (include "switchboard.fullname" .)) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $derived (deepCopy .Values.config)) -}}
{{- end -}}

{{- define "switchboard.kubernetes" -}}
{{- dig "allowlist" "kubernetes" (dict "enabled" false) .Values.config | toYaml -}}
{{- end -}}

{{- /* The permissions to watch Services and to write to the cluster for them, and no other. */ -}}
{{- define "switchboard.rules" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- $kubernetes := include "switchboard.kubernetes" . | fromYaml }}
{{- if $kubernetes.wake }}
- apiGroups: [apps]
  resources: [statefulsets/scale, deployments/scale]
  verbs: [get, patch]
{{- end }}
{{- if or $kubernetes.wake $kubernetes.report_activity }}
- apiGroups: [kubeflow.org]
  resources: [notebooks]
  verbs: [get, patch]
{{- end }}
{{- if $kubernetes.events }}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}
{{- end -}}

{{- /* The groups of files/rules.yaml, with this release's runbook and the bound of its drain. */ -}}
{{- define "switchboard.alerts" -}}
{{- $runbook := .Values.metrics.prometheus.prometheusRule.runbook -}}
{{- $groups := get (.Files.Get "files/rules.yaml" | fromYaml) "groups" -}}
{{- range $group := $groups -}}
{{- range $rule := $group.rules -}}
{{- $anchor := regexFind "#.*" $rule.annotations.runbook_url -}}
{{- $_ := set $rule.annotations "runbook_url" (print $runbook $anchor) -}}
{{- if eq $rule.alert "SwitchboardDrainStuck" -}}
{{- $_ := set $rule "for" (printf "%ds" (add 300 (include "switchboard.drainSeconds" $ | int64))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $groups -}}
{{- end -}}

{{- /* Refuses an object whose kind the cluster does not have. Without a cluster (`helm template`) its kinds are unknown,
and v1/Service is missing among them. */ -}}
{{- define "switchboard.needsKind" -}}
{{- $kinds := .root.Capabilities.APIVersions -}}
{{- if and ($kinds.Has "v1/Service") (not ($kinds.Has .kind)) -}}
{{- fail (printf "%s needs the custom resource %s, which this cluster does not have: install the Prometheus operator first, or set it to false" .key .kind) -}}
{{- end -}}
{{- end -}}
