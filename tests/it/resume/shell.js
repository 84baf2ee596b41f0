// A shell by ssh2, with this program's stdin and stdout: shell.js MODULES PORT USER KEY.
const fs = require("fs");
const [modules, port, username, key] = process.argv.slice(2);
const { Client } = require(`${modules}/ssh2`);

const client = new Client();
client.on("ready", () => client.exec("sh", (error, stream) => {
    if (error) throw error;
    process.stdin.pipe(stream);
    stream.pipe(process.stdout);
    stream.on("close", (code) => { client.end(); process.exit(code); });
}));
client.connect({ host: "127.0.0.1", port: Number(port), username, privateKey: fs.readFileSync(key) });
