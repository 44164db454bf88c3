<<<<<<<< HEAD:web/dist/assets/arrow-down-B2SjVkPT.js
import{rt as e}from"./index-CJinAzrj.js";var t={name:`arrow-down`,size:24,node:[[`path`,{d:`M12 5v14`,key:`s699le`}],[`path`,{d:`m19 12-7 7-7-7`,key:`1idqje`}]]};t.node;var n=e(t);export{n as t};
========
import{nt as e}from"./index-BTLdR8Y3.js";var t={name:`arrow-down`,size:24,node:[[`path`,{d:`M12 5v14`,key:`s699le`}],[`path`,{d:`m19 12-7 7-7-7`,key:`1idqje`}]]};t.node;var n=e(t);export{n as t};
>>>>>>>> 6eef2eb (calls: when a call's turn came, when it was sent and answered; replays name their originals):web/dist/assets/arrow-down-DiOGYIQJ.js
