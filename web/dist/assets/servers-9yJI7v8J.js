<<<<<<<< HEAD:web/dist/assets/servers-CdGbApV8.js
import{at as e,st as t}from"./index-CJinAzrj.js";var n={start:`started`,stop:`stopped`,restart:`restarted`,enable:`switched on`,disable:`switched off`},r=(n,r)=>t(e.POST(`/api/v1/mcp/servers/{id}/${r}`,{params:{path:{id:n}}})),i=n=>t(e.DELETE(`/api/v1/mcp/servers/{id}`,{params:{path:{id:n}}}));export{r as n,i as r,n as t};
========
import{it as e,ot as t}from"./index-BTLdR8Y3.js";var n={start:`started`,stop:`stopped`,restart:`restarted`,enable:`switched on`,disable:`switched off`},r=(n,r)=>t(e.POST(`/api/v1/mcp/servers/{id}/${r}`,{params:{path:{id:n}}})),i=n=>t(e.DELETE(`/api/v1/mcp/servers/{id}`,{params:{path:{id:n}}}));export{r as n,i as r,n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/servers-9yJI7v8J.js
