// A login and a copy by ssh2 through a jump host: clients.js MODULES PORT METHOD SECRET USER KEY FROM TO.
const fs = require("fs");
const [modules, port, method, secret, username, key, from, to] = process.argv.slice(2);
const { Client } = require(`${modules}/ssh2`);

const [door, box] = [new Client(), new Client()];
const taken = (use) => (error, value) => { if (error) throw error; use(value); };
door.on("ready", () => door.forwardOut("127.0.0.1", 1, "devbox.team-a", 22, taken((sock) =>
    box.connect({ sock, username, privateKey: fs.readFileSync(key) }))));
box.on("ready", () => box.exec("echo in", taken((stream) => {
    stream.pipe(process.stdout);
    stream.on("close", () => box.sftp(taken((sftp) => sftp.fastPut(from, to, taken(() => { box.end(); door.end(); })))));
})));
const proof = method === "password" ? { password: secret } : { privateKey: fs.readFileSync(secret) };
door.connect({ host: "127.0.0.1", port: Number(port), username: "alice", ...proof });
