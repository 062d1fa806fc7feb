// Connects the page to the program that serves it, and shows the state.
import { serve } from "./agent.js";

const show = (text) => (document.getElementById("state").textContent = text);
const socket = new WebSocket(new URL("link", location.href.replace(/^http/, "ws")));
let jobs = 0;
socket.addEventListener("close", ({ code, reason }) => show(`The connection has ended: ${reason || `code ${code}`}.`));
serve(socket, (running) => show(running ? `Job ${++jobs} is running.` : `Connected. ${jobs} jobs have run.`));
// A device that sleeps loses its connection.
document.addEventListener("visibilitychange", awake);
awake();

function awake() {
  if (!document.hidden) navigator.wakeLock?.request("screen").catch(() => {});
}
