// Requests to the desk. The secret comes in the fragment of the address, which no browser sends anywhere, and goes into a
// field that no page of another origin can set.

const KEPT = "switchboard-desk";

function takeSecret() {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem(KEPT, given);
    // It stays neither in the address bar nor in the history.
    history.replaceState(null, "", location.pathname);
  }
  return given || sessionStorage.getItem(KEPT) || "";
}

let secret = takeSecret();
addEventListener("hashchange", () => { secret = takeSecret(); });

/** An answer that is no success. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Sends a request and gives the JSON of its answer. */
export async function call(method, path, body) {
  const answer = await fetch(path, {
    method,
    headers: { Authorization: `Bearer ${secret}`, ...(body && { "Content-Type": "application/json" }) },
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(60_000),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said?.error ?? `status ${answer.status}`);
  return said;
}
