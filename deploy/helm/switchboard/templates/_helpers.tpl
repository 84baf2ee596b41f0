{{- /* A name as objects may have it, Services (DNS-1035) included: at most 63 lower case letters, digits and hyphens, with a
letter first. A name that had to be changed ends with a hash of what it was, so that two of them stay two. */ -}}
{{- define "switchboard.fit" -}}
{{- $fit := regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" -}}
{{- if not (regexMatch "^[a-z]" $fit) -}}
{{- $fit = printf "s%s" $fit -}}
{{- end -}}
{{- if or (ne $fit .) (gt (len $fit) 63) -}}
{{- $fit = printf "%s-%s" (trunc 54 $fit | trimSuffix "-") (sha256sum . | trunc 8) -}}
{{- end -}}
{{- $fit -}}
{{- end -}}

{{- define "switchboard.name" -}}
{{- include "switchboard.fit" (default .Chart.Name .Values.nameOverride) -}}
{{- end -}}

{{- /* The release's name when it already says switchboard, else both. */ -}}
{{- define "switchboard.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- include "switchboard.fit" .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- include "switchboard.fit" .Release.Name -}}
{{- else -}}
{{- include "switchboard.fit" (printf "%s-%s" .Release.Name $name) -}}
{{- end -}}
{{- end -}}

{{- /* The name of an object beside the first of its kind: `suffix`. In a namespace that other releases may use too, or in
none, it says whose it is: neither part has a dot. */ -}}
{{- define "switchboard.objectName" -}}
{{- $name := include "switchboard.fullname" .root -}}
{{- with .suffix -}}
{{- $name = include "switchboard.fit" (printf "%s-%s" $name .) -}}
{{- end -}}
{{- $own := include "switchboard.namespace" .root -}}
{{- if ne (default "" .namespace) $own -}}
{{- $whole := printf "%s.%s" $name $own -}}
{{- $name = ternary $whole (printf "%s-%s" (trunc 54 $whole | trimAll "-.") (sha256sum $whole | trunc 8)) (le (len $whole) 63) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "switchboard.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "switchboard.serviceAccountName" -}}
{{- default (ternary (include "switchboard.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- /* The first lines of every object: `suffix`, `namespace` (empty: the release's; "-": none), `more` labels, annotations. */ -}}
{{- define "switchboard.metadata" -}}
{{- $namespace := default (include "switchboard.namespace" .root) .namespace -}}
name: {{ include "switchboard.objectName" (dict "root" .root "suffix" .suffix "namespace" $namespace) | quote }}
{{- if ne $namespace "-" }}
namespace: {{ $namespace | quote }}
{{- end }}
labels:
  {{- include "switchboard.labels" (dict "root" .root "more" .more) | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "switchboard.selectorLabels" -}}
app.kubernetes.io/name: {{ include "switchboard.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- /* The pods of the checks have other labels than the proxy's, or Services and policies would select them. */ -}}
{{- define "switchboard.checkLabels" -}}
{{- $name := include "switchboard.fit" (printf "%s-check" (include "switchboard.name" .)) -}}
{{- $own := dict "app.kubernetes.io/name" $name "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $own (deepCopy .Values.commonLabels)) -}}
{{- end -}}

{{- /* The labels of an object: the chart's own, then those of `more`, then those of all. */ -}}
{{- define "switchboard.labels" -}}
{{- $own := include "switchboard.selectorLabels" .root | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .root.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_.") -}}
{{- toYaml (merge $own (deepCopy (default dict .more)) (deepCopy .root.Values.commonLabels)) -}}
{{- end -}}

{{- /* The pods' account, as a binding names it. */ -}}
{{- define "switchboard.subject" -}}
- kind: ServiceAccount
  name: {{ include "switchboard.serviceAccountName" . | quote }}
  namespace: {{ include "switchboard.namespace" . | quote }}
{{- end -}}

{{- /* A binding of the pods' account to a role: `kind` of the role, `role`, and what metadata takes. */ -}}
{{- define "switchboard.binding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ .kind }}Binding
metadata:
  {{- include "switchboard.metadata" (omit . "kind" "role") | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ default (include "switchboard.objectName" (dict "root" .root "suffix" .suffix "namespace" (default (include "switchboard.namespace" .root) .namespace))) .role | quote }}
subjects:
  {{- include "switchboard.subject" .root | nindent 2 }}
{{- end -}}

{{- define "switchboard.image" -}}
{{- with .Values.image -}}
{{- if not .registry -}}
{{- fail "image.registry is empty: in the repository `make images` builds the images and loads them into kind, for image.registry=localhost; in another cluster push them, and name your registry" -}}
{{- end -}}
{{- printf "%s/%s:%s" .registry .repository (default $.Chart.AppVersion .tag) | quote -}}
{{- end -}}
{{- end -}}

{{- /* The seconds of a duration as the program reads it ("1h30m", "1.5h", "2 days 4 hours"), with their fractions. */ -}}
{{- define "switchboard.duration" -}}
{{- $unit := dict "n" 0.000000001 "u" 0.000001 "µ" 0.000001 "ms" 0.001 "mi" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 "w" 604800.0 -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9.]+ ?[a-zµ]+" (toString .) -1 -}}
{{- $name := regexFind "[a-zµ]+" . -}}
{{- $key := ternary "µ" (trunc 1 $name) (hasPrefix "µ" $name) -}}
{{- if or (eq $name "ms") (hasPrefix "mil" $name) (hasPrefix "mse" $name) -}}
{{- $key = "ms" -}}
{{- end -}}
{{- $total = addf $total (mulf (regexFind "[0-9.]+" . | float64) (get $unit $key)) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{- /* The hard bound of a drain: delay + timeout + spread, with the binary's defaults where the file says nothing. */ -}}
{{- define "switchboard.drainSeconds" -}}
{{- $drain := default dict (get (include "switchboard.pruned" .Values.config | fromJson) "drain") -}}
{{- $sum := 0 -}}
{{- range $key, $default := dict "delay" "5s" "timeout" "1h" "spread" "5m" -}}
{{- $sum = include "switchboard.duration" (default $default (get $drain $key)) | float64 | ceil | int64 | add $sum -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{- /* How long the preStop hook waits: until the drain begins to close the tunnels that are left. */ -}}
{{- define "switchboard.drainWait" -}}
{{- $spread := dig "spread" "5m" (default dict (get (include "switchboard.pruned" .Values.config | fromJson) "drain")) -}}
{{- sub (include "switchboard.drainSeconds" . | int64) (include "switchboard.duration" $spread | float64 | ceil | int64) -}}s
{{- end -}}

{{- /* JSON of a value without its nulls, which would otherwise replace what the chart derives. */ -}}
{{- define "switchboard.pruned" -}}
{{- $pruned := . -}}
{{- if kindIs "map" . -}}
{{- $pruned = dict -}}
{{- range $key, $value := . -}}
{{- if not (kindIs "invalid" $value) -}}
{{- $_ := set $pruned $key (get (include "switchboard.pruned" $value | printf "{\"v\": %s}" | fromJson) "v") -}}
{{- end -}}
{{- end -}}
{{- else if kindIs "slice" . -}}
{{- $pruned = list -}}
{{- range . -}}
{{- $pruned = append $pruned (get (include "switchboard.pruned" . | printf "{\"v\": %s}" | fromJson) "v") -}}
{{- end -}}
{{- end -}}
{{- toJson $pruned -}}
{{- end -}}

{{- define "switchboard.gracePeriod" -}}
{{- $drain := include "switchboard.drainSeconds" . | int64 -}}
{{- $asked := .Values.deployment.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $asked -}}
{{- min (add $drain 30) 2147483647 -}}
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
{{- $trusted := list -}}
{{- if ne .tls "off" -}}
{{- $_ := set $listener "tls" .tls -}}
{{- end -}}
{{- if ne .port.proxyProtocol.mode "off" -}}
{{- if not .port.proxyProtocol.trustedIPs -}}
{{- fail (printf "ports.%s.proxyProtocol needs trustedIPs: anyone could claim any address" .name) -}}
{{- end -}}
{{- $_ := set $listener "proxy_protocol" .port.proxyProtocol.mode -}}
{{- $trusted = .port.proxyProtocol.trustedIPs -}}
{{- end -}}
{{- with .port.websocket -}}
{{- if .path -}}
{{- if and .trustedTLS (not .trustedIPs) -}}
{{- fail (printf "ports.%s.websocket.trustedTLS needs trustedIPs: any client could count as one of TLS" $.name) -}}
{{- end -}}
{{- if and $trusted (ne (sortAlpha $trusted | join " ") (sortAlpha .trustedIPs | join " ")) -}}
{{- fail (printf "ports.%s: proxyProtocol.trustedIPs and websocket.trustedIPs differ: the proxy has one list of trusted addresses for a port" $.name) -}}
{{- end -}}
{{- $trusted = .trustedIPs -}}
{{- $_ := set $listener "websocket" (dict "path" .path "trusted_tls" .trustedTLS) -}}
{{- else if or .trustedIPs .trustedTLS -}}
{{- fail (printf "ports.%s.websocket has no effect without its path" $.name) -}}
{{- end -}}
{{- end -}}
{{- with $trusted -}}
{{- $_ := set $listener "trusted_proxies" . -}}
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
{{- $tls = mergeOverwrite $tls (default dict (get (include "switchboard.pruned" .Values.config | fromJson) "tls")) -}}
{{- if and (ne (default "off" $tls.client_auth) "off") (not $tls.client_ca) -}}
{{- fail "tls.clientAuth needs tls.clientCA.secretName: nobody could be known by a certificate" -}}
{{- end -}}
{{- toYaml $tls -}}
{{- end -}}

{{- /* The section `access` of the configuration file: that of the values without the chart's own keys, then `config.access`
over it. Empty for the default, `open`. */ -}}
{{- define "switchboard.access" -}}
{{- $own := include "switchboard.pruned" (omit .Values.access "clusterRole" "secrets") | fromJson -}}
{{- $access := mergeOverwrite $own (default dict (get (include "switchboard.pruned" .Values.config | fromJson) "access")) -}}
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
{{- if (default dict $access.tickets).enabled -}}tickets{{- end -}}
{{- end -}}

{{- /* True if public keys are read from the cluster. */ -}}
{{- define "switchboard.sshKeys" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- if (default dict $access.ssh_keys).enabled -}}ssh-keys{{- end -}}
{{- end -}}

{{- /* True if the pods watch their own Service, for anchors that dial in. */ -}}
{{- define "switchboard.replicas" -}}
{{- $anchors := get (include "switchboard.pruned" .Values.config | fromJson) "anchors" -}}
{{- if kindIs "map" $anchors -}}
{{- if eq (default "auto" $anchors.replicas | toString) "auto" -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{- /* True if the pods ask the API server at all. */ -}}
{{- define "switchboard.cluster" -}}
{{- $kubernetes := include "switchboard.kubernetes" . | fromYaml -}}
{{- if or $kubernetes.enabled (include "switchboard.reviews" .) (include "switchboard.tickets" .) (include "switchboard.sshKeys" .) (include "switchboard.replicas" .) -}}true{{- end -}}
{{- end -}}

{{- /* The permission `ssh`, also in its map form, as a rule of a ClusterRole; nothing for another one: whoever had it by the
ClusterRole could really do what it says. */ -}}
{{- define "switchboard.accessRule" -}}
{{- $access := include "switchboard.access" . | fromYaml -}}
{{- $permission := default "ssh" (default dict $access.kubernetes).permission -}}
{{- $ssh := dict "verb" "create" "group" "" "resource" "services" "subresource" "ssh" -}}
{{- if kindIs "map" $permission -}}
{{- if eq (toJson (merge (omit $permission "name") (dict "group" "" "subresource" ""))) (toJson $ssh) -}}
{{- $permission = "ssh" -}}
{{- end -}}
{{- end -}}
{{- if eq (toString $permission) "ssh" -}}
- apiGroups: [""]
  resources: [services/ssh{{ if dig "pods" "enabled" false (include "switchboard.kubernetes" . | fromYaml) }}, pods/ssh{{ end }}]
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
{{- $paths := list (default "" (default dict $access.users).file) (default "" (default dict $access.ssh_authorities).file) -}}
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
{{- $config := mergeOverwrite $derived (include "switchboard.pruned" .Values.config | fromJson) -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "switchboard.kubernetes" -}}
{{- dig "allowlist" "kubernetes" (dict "enabled" false) (include "switchboard.pruned" .Values.config | fromJson) | toYaml -}}
{{- end -}}

{{- /* The program's own `workload_kinds`, as far as rules need them. */ -}}
{{- define "switchboard.workloadKinds" -}}
- {resource: statefulsets.v1.apps/scale, patch: "{}"}
- {resource: deployments.v1.apps/scale, patch: "{}"}
- {resource: notebooks.v1.kubeflow.org, patch: "{}", activity: notebooks.kubeflow.org/last-activity}
{{- end -}}

{{- /* The permissions for the targets of `root` that are Services, pods or both: to watch them and to write to the cluster for
them, and no other. */ -}}
{{- define "switchboard.rules" -}}
{{- $kubernetes := include "switchboard.kubernetes" .root | fromYaml -}}
{{- $wakes := and .services $kubernetes.wake -}}
{{- $rules := list -}}
{{- if .services -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "services") "verbs" (list "get" "list" "watch")) -}}
{{- $rules = append $rules (dict "apiGroups" (list "discovery.k8s.io") "resources" (list "endpointslices") "verbs" (list "get" "list" "watch")) -}}
{{- end -}}
{{- $groups := dict -}}
{{- $own := include "switchboard.workloadKinds" . | fromYamlArray -}}
{{- range ternary $kubernetes.workload_kinds $own (hasKey $kubernetes "workload_kinds") -}}
{{- $parts := splitn "." 3 .resource -}}
{{- $group := splitn "/" 2 $parts._2 -}}
{{- $names := list -}}
{{- if and $wakes .patch -}}{{- $names = append $names (printf "%s/%s" $parts._0 (default "" $group._1) | trimSuffix "/") -}}{{- end -}}
{{- if and $kubernetes.report_activity .activity -}}{{- $names = append $names $parts._0 -}}{{- end -}}
{{- $_ := set $groups $group._0 (concat (default list (get $groups $group._0)) $names | uniq) -}}
{{- end -}}
{{- range $group, $names := $groups -}}
{{- if $names -}}
{{- $rules = append $rules (dict "apiGroups" (list $group) "resources" $names "verbs" (list "get" "patch")) -}}
{{- end -}}
{{- end -}}
{{- if $kubernetes.events -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "events") "verbs" (list "create" "patch")) -}}
{{- end -}}
{{- if .pods -}}
{{- $rules = append $rules (dict "apiGroups" (list "") "resources" (list "pods") "verbs" (list "get" "list" "watch")) -}}
{{- end -}}
{{- toYaml $rules -}}
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
{{- fail (printf "%s needs the custom resource %s, which this cluster does not have: install it first, or set the key to false" .key .kind) -}}
{{- end -}}
{{- end -}}
