const app = document.getElementById("app");
fetch("v2").then((response) => response.json()).then((server) => { app.textContent = `${server.name} ${server.version}`; });
