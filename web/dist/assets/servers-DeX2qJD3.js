<<<<<<<< HEAD:web/dist/assets/servers-DSJ6ZxO5.js
import{it as e,ot as t}from"./index-BN0bakJ-.js";var n={start:`started`,stop:`stopped`,restart:`restarted`,enable:`switched on`,disable:`switched off`},r=(n,r)=>t(e.POST(`/api/v1/mcp/servers/{id}/${r}`,{params:{path:{id:n}}})),i=n=>t(e.DELETE(`/api/v1/mcp/servers/{id}`,{params:{path:{id:n}}}));export{r as n,i as r,n as t};
========
import{at as e,st as t}from"./index-BydS8Lfo.js";var n={start:`started`,stop:`stopped`,restart:`restarted`,enable:`switched on`,disable:`switched off`},r=(n,r)=>t(e.POST(`/api/v1/mcp/servers/{id}/${r}`,{params:{path:{id:n}}})),i=n=>t(e.DELETE(`/api/v1/mcp/servers/{id}`,{params:{path:{id:n}}}));export{r as n,i as r,n as t};
>>>>>>>> 16714c6 (console: Apps of tools are drawn in a sandbox on another origin):web/dist/assets/servers-DeX2qJD3.js
