// A page's agent in node: node page.mjs FOLDER ADDRESS, where FOLDER has the files of a page.
import { pathToFileURL } from "node:url";

const [folder, address] = process.argv.slice(2);
const { serve } = await import(pathToFileURL(`${folder}/agent.js`));
const { origin } = new URL(address);
const socket = new WebSocket(new URL("link", address.replace(/^http/, "ws")), { headers: { origin } });
socket.addEventListener("close", ({ reason }) => {
  console.error(reason);
  process.exit(reason ? 1 : 0);
});
serve(socket);
