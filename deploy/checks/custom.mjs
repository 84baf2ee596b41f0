// Checks the custom resources of custom.json, or of another file, against the schemas and the types that are made from their
// CRDs: the schema knows required fields, patterns and enumerations, the type refuses fields that do not exist.
import { readFileSync, writeFileSync } from "node:fs";
import { execFileSync } from "node:child_process";

const packages = {
  "monitoring.coreos.com": "prometheus-operator",
  "gateway.networking.k8s.io": "gateway-api",
  "security.istio.io": "istio",
};
const work = process.argv[2];
const entries = JSON.parse(readFileSync(`${work}/${process.argv[3] ?? "custom.json"}`, "utf8"));
const types = [];
let faults = 0;

for (const [index, { where, object }] of entries.entries()) {
  const group = object.apiVersion.split("/")[0];
  if (!packages[group]) {
    console.log(`${where}: no schema is known for ${object.apiVersion}`);
    faults += 1;
    continue;
  }
  const module = `@kubernetes-models/${packages[group]}/${object.apiVersion}`;
  const { [object.kind]: Model } = await import(module);
  try {
    new Model(object).validate();
  } catch (error) {
    console.log(`${where}: ${error.message}`);
    faults += 1;
  }
  const { apiVersion, kind, ...rest } = object;
  types.push(`import { ${kind} as T${index} } from "${module}";`);
  types.push(`export const o${index} = new T${index}( // ${where}\n${JSON.stringify(rest, null, 1)});`);
}

writeFileSync("custom.ts", types.sort((a, b) => a.startsWith("export") - b.startsWith("export")).join("\n") + "\n");
try {
  const options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"];
  execFileSync("node", ["node_modules/typescript/bin/tsc", ...options, "custom.ts"], { encoding: "utf8" });
} catch (error) {
  console.log(error.stdout || error.message);
  faults += 1;
}
console.log(`${entries.length} custom resources, ${faults} faults`);
process.exit(faults ? 1 : 0);
