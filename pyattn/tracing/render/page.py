"""CSS, script and HTML frame of a page. A page is self-contained and loads nothing."""

from __future__ import annotations

import os
from pathlib import Path

from pyattn.tracing.render.colours import COLOURS, DARK_EDGES, HEAT

__all__ = ["SCRIPT", "STYLE", "class_of", "save_page"]


def class_of(kind: str) -> str:
    """Return the CSS class of a kind of tensor."""
    return "pa-" + kind.replace(" ", "-")


_HEAT = "{},{},{}".format(*HEAT)


def _edges(colours: dict[str, str]) -> str:
    return "".join(f";--{class_of(kind)}:{colour}" for kind, colour in colours.items())


_LIGHT = (
    "--ink:#1c1e21;--paper:#ffffff;--soft:#5a626d;--line:#d5d9df;--cell:#f7f8fa;--tip:#ffffff;--mark:#111111;--tint:30%"
) + _edges(COLOURS)
_DARK = (
    "--ink:#e8e8e8;--paper:#16181c;--soft:#a6adb8;--line:#3a3f47;--cell:#20242a;--tip:#2b3038;--mark:#ffffff;--tint:35%"
) + _edges(DARK_EDGES)
STYLE = (
    f"""
.pyattn{{{_LIGHT};
color:var(--ink);background:var(--paper);font:14px/1.45 system-ui,sans-serif;padding:1px 16px 8px;max-width:1100px}}
@media(prefers-color-scheme:dark){{.pyattn{{{_DARK}}}}}
[data-jp-theme-light=true] .pyattn{{{_LIGHT}}}
[data-jp-theme-light=false] .pyattn{{{_DARK}}}
.pyattn section{{border-top:1px solid var(--line);padding:2px 0 10px}}
.pyattn h2{{font-size:20px;margin:12px 0 4px}}
.pyattn h3{{font-size:16px;margin:10px 0 4px}}
.pyattn p{{margin:4px 0;color:var(--soft);white-space:pre-line}}
.pyattn pre{{margin:4px 0;font:13px/1.4 ui-monospace,monospace;color:var(--ink);background:none;white-space:pre-wrap}}
.pyattn .pa-row{{display:flex;flex-wrap:wrap;gap:12px 28px;align-items:flex-start}}
.pyattn [data-of]{{max-width:100%}}
.pyattn figure{{margin:6px 0;max-width:100%;overflow-x:auto}}
.pyattn figcaption{{font-size:13px;margin-bottom:4px;padding-left:8px;border-left:10px solid var(--edge);
text-align:left}}
.pyattn figcaption span{{color:var(--soft)}}
.pyattn table{{border-collapse:separate;border-spacing:2px;margin:0;border:0;font:13px/1.3 ui-monospace,monospace;
white-space:nowrap;border-left:3px solid var(--edge);border-right:3px solid var(--edge)}}
.pyattn tr,.pyattn tbody tr:nth-child(n){{background:none}}
.pyattn td{{text-align:right;padding:3px 7px;min-width:1.2em;color:var(--ink);
background:var(--cell);background:color-mix(in srgb,var(--kind) var(--tint),var(--paper));
border:0;border-bottom:2px solid var(--edge)}}
.pyattn th{{font-weight:400;color:var(--soft);padding:2px 6px;text-align:right;background:none;border:0}}
.pyattn td[style]{{background:linear-gradient(rgba({_HEAT},var(--w)),rgba({_HEAT},var(--w))),var(--paper)}}
.pyattn td.pa-gap{{background:none;border-color:transparent}}
.pyattn td.pa-from{{outline:2px dashed var(--mark)}}
.pyattn td.pa-here{{outline:3px solid var(--mark)}}
.pyattn img{{display:block;image-rendering:pixelated;border:1px solid var(--line);background:var(--paper)}}
.pyattn summary{{cursor:pointer;margin:6px 0}}
.pyattn .pa-tip{{position:fixed;z-index:9;max-width:min(520px,90vw);padding:8px 10px;font-size:13px;
white-space:pre-line;color:var(--ink);background:var(--tip);border:1px solid var(--soft);border-radius:6px;
box-shadow:0 3px 12px rgba(0,0,0,.3);pointer-events:none}}
""".strip()
    + "".join(
        f"\n.pyattn .{class_of(kind)}{{--kind:{colour};--edge:var(--{class_of(kind)})}}"
        for kind, colour in COLOURS.items()
    )
)

# On hover: find the cell, list the products that it is the sum of, and mark their operands. Matrices are in the row
# convention. i and j are indices of the whole matrix, of which the table may show a part.
SCRIPT = r"""
const explain=function(root){
if(root.dataset.on)return;
root.dataset.on=1;
var areas=[root].concat(Array.from(root.closest(".pyattn").querySelectorAll("[data-of='"+root.id+"']")));
var D=JSON.parse(root.querySelector("script[type='application/json']").textContent),memo={},tip=null,marked=[];
var visible=D.visible===null?"":atob(D.visible);
function M(n){
  if(memo[n])return memo[n];
  var e=D.m[n];
  if(e){
    var s=atob(e[2]),v=new DataView(new ArrayBuffer(s.length)),a=new Float64Array(s.length/4),i;
    for(i=0;i<s.length;i++)v.setUint8(i,s.charCodeAt(i));
    for(i=0;i<a.length;i++)a[i]=v.getFloat32(4*i,true);
    return memo[n]={r:e[0],c:e[1],a:a};
  }
  var w={keys:"key",queries:"query",values:"value"}[n];
  if(w&&M("x")&&M("w_"+w))return memo[n]=P(M("x"),M("w_"+w),M("b_"+w));
  return null;
}
function P(A,B,b){
  var o={r:A.r,c:B.c,a:new Float64Array(A.r*B.c)},i,j,k,s;
  for(i=0;i<A.r;i++)for(j=0;j<B.c;j++){
    for(s=b?b.a[j]:0,k=0;k<A.c;k++)s+=A.a[i*A.c+k]*B.a[k*B.c+j];
    o.a[i*B.c+j]=s;
  }
  return o;
}
function row(A,i){return Array.prototype.slice.call(A.a,i*A.c,i*A.c+A.c);}
function col(A,j){var o=[],i;for(i=0;i<A.r;i++)o.push(A.a[i*A.c+j]);return o;}
function N(x){
  var y=Math.abs(x);
  if(x===0)return"0";
  if(!isFinite(x))return x!==x?"nan":x>0?"inf":"-inf";
  if(y<5e-5||y>=1e7)return x.toExponential(y<5e-5?1:3);
  return String(+x.toFixed(4));
}
function B(x){return x<0?"("+N(x)+")":N(x);}
function V(v){return"["+v.slice(0,8).map(N).join(", ")+(v.length>8?", ...":"")+"]";}
function S(t,n){return t.slice(0,6).join(" + ")+(t.length>6?" + ... ("+t.length+" terms)":"");}
function Z(a,b){return a.map(function(x,d){return B(x)+"\u00d7"+B(b[d]);});}
function name(n,i){var t=D[n];return(i+1)+(t?" ("+t[i]+")":"");}
function between(q,k){
  var W=M("score_weight"),s=0,a=0,b=0,d;
  if(D.score==="bilinear")q=row(P({r:1,c:q.length,a:q},W),0);
  for(d=0;d<q.length;d++){
    s+=D.score==="distance"?-(q[d]-k[d])*(q[d]-k[d]):D.score==="additive"?W.a[d]*Math.tanh(q[d]+k[d]):q[d]*k[d];
    a+=q[d]*q[d];b+=k[d]*k[d];
  }
  return D.scale*(D.score==="cosine"?(a&&b?s/Math.sqrt(a)/Math.sqrt(b):0):s);
}
function seen(i,k){
  var n=i*M("keys").r+k;
  return D.visible===null||(visible.charCodeAt(n>>3)>>(7-n%8)&1)===1;
}
function scores(i){
  var Q=M("queries"),K=M("keys"),b=M("attn_bias"),o=[],k;
  if(!Q||!K)return null;
  if(memo["s"+i])return memo["s"+i];
  for(k=0;k<K.r;k++)o.push(seen(i,k)?between(row(Q,i),row(K,k))+(b?b.a[i*b.c+k]:0):-Infinity);
  return memo["s"+i]=o;
}
function weights(i){
  var A=M("weights"),s=scores(i),m,t=0,z,k;
  if(A)return row(A,i);
  if(!s)return null;
  if(D.normalize==="sigmoid")return s.map(function(x){return 1/(1+Math.exp(-x));});
  m=Math.max.apply(null,s);
  if(m===-Infinity)return s.map(function(){return 0;});
  if(D.normalize==="softmax"){
    z=s.map(function(x){x=Math.exp(x-m);t+=x;return x;});
    return z.map(function(x,k){return s[k]===-Infinity?0:x/t;});
  }
  z=s.slice().sort(function(a,b){return b-a;});
  for(k=0;k<z.length&&1+(k+1)*(z[k]-m)>t+z[k]-m;k++)t+=z[k]-m;
  t=(t-1)/k;
  return s.map(function(x){return x===-Infinity?0:Math.max(x-m-t,0);});
}
function products(i,k){
  var q=row(M("queries"),i),K=row(M("keys"),k),c=D.score==="distance"?-D.scale:D.scale,W=M("score_weight"),t,h;
  var f=c===1?"":c===-1?"-":N(c)+" \u00d7 ";
  h="query "+V(q)+"\nkey "+V(K)+"\n";
  if(D.score==="bilinear"){q=row(P({r:1,c:q.length,a:q},W),0);h+="query times W "+V(q)+"\n";}
  t=q.map(function(x,d){
    return D.score==="distance"?"("+N(x)+" - "+B(K[d])+")\u00b2":
      D.score==="additive"?B(W.a[d])+"\u00d7tanh("+N(x)+" + "+B(K[d])+")":B(x)+"\u00d7"+B(K[d]);
  });
  t=S(t);
  if(f||D.score==="cosine")t=f+"("+t+")";
  if(D.score==="cosine")t+=" / ("+N(Math.hypot.apply(null,q))+"\u00d7"+N(Math.hypot.apply(null,K))+")";
  return h+t+" = "+N(between(row(M("queries"),i),K));
}
function about(n,i,j){
  var A=M(n),big="The matrices are too large to be embedded in this page.",line=D.column?"row":"column",o,s,x,w,v,t;
  if(n==="x")return["input "+name("q",i)+", number "+(j+1)+(A?" = "+N(A.a[i*A.c+j]):"")+"\ngiven",[]];
  if(n[1]==="_")return[n+(n[0]==="b"?", number "+(j+1):", from number "+(i+1)+" of x to number "+(j+1))+
    (A?" = "+N(A.a[i*A.c+j]):"")+"\ngiven",[]];
  if(n==="keys"||n==="queries"||n==="values"){
    s={keys:"key",queries:"query",values:"value"}[n];o=s+" "+name(n==="queries"?"q":"k",i)+", number "+(j+1);
    if(M("x")&&i>=M("x").r)return[o+" = "+N(A.a[i*A.c+j])+"\nnot projected from an input: a parameter or zero",[]];
    if(!M("x"))return[o+(A?" = "+N(A.a[i*A.c+j])+(D.given?"\ngiven":"\n"+big):"\n"+big),[]];
    x=row(M("x"),i);w=col(M("w_"+s),j);v=M("b_"+s);
    return[o+"\nx "+V(x)+"\n"+line+" "+(j+1)+" of w_"+s+" "+V(w)+"\n"+S(Z(x,w))+(v?" + bias "+B(v.a[j]):"")+" = "+
      N(A.a[i*A.c+j]),[["x",i,-1],["w_"+s,-1,j],["b_"+s,-1,j]]];
  }
  if(n==="attn_bias"){
    o="mask for query "+name("q",i)+" and key "+name("k",j);
    return[o+(A?" = "+N(A.a[i*A.c+j]):"")+"\nadded to the score",[]];
  }
  if(n==="scores"){
    o="score of query "+name("q",i)+" and key "+name("k",j);s=scores(i);
    t=[["queries",i,-1],["keys",j,-1],["attn_bias",i,j]];
    if(!s)return[o+"\n"+big,t];
    if(!seen(i,j))return[o+"\nhidden by the mask = -inf",[]];
    v=M("attn_bias");
    return[o+"\n"+products(i,j)+(v?"\n+ "+B(v.a[i*v.c+j])+" from the mask = "+N(s[j]):""),t];
  }
  if(n==="weights"){
    o="weight of key "+name("k",j)+" for query "+name("q",i);s=scores(i);
    if(!s)return[o+"\n"+big,[["scores",i,-1]]];
    o+="\nscores "+V(s)+"\n";
    if(!seen(i,j))o+="hidden by the mask";
    else if(D.normalize==="softmax"){
      t=s.filter(function(y,k){return seen(i,k);});
      o+="exp("+N(s[j])+") / ("+S(t.map(function(y){return"exp("+N(y)+")";}))+")";
    }else if(D.normalize==="sigmoid")o+="1 / (1 + exp("+N(-s[j])+"))";
    else o+="max("+N(s[j])+" - tau, 0)";
    return[o+" = "+N(weights(i)[j])+(D.rounded===null?"":", rounded to "+D.rounded+" decimal"+(D.rounded===1?"":"s")),
      [["scores",i,-1]]];
  }
  w=weights(n==="outputs"?i:i[1]);v=M("values");
  if(!w||!v)return[n.replace("_"," ")+"\n"+big,[]];
  if(n==="outputs"){
    t=w.map(function(y,k){return B(y)+"\u00d7"+B(v.a[k*v.c+j]);});
    s=w.reduce(function(y,z,k){return seen(i,k)?y+z*v.a[k*v.c+j]:y;},0);
    o="output "+name("q",i)+", number "+(j+1);
    if(D.empty==="nan"&&scores(i).every(function(y){return y===-Infinity;}))
      return[o+" = nan\nevery key is masked",[["weights",i,-1]]];
    return[o+"\nweights "+V(w)+"\n"+line+" "+(j+1)+" of values "+V(col(v,j))+
      "\n"+S(t)+" = "+N(s),[["weights",i,-1],["values",-1,j]]];
  }
  x=w[i[0]];t=v.a[i[0]*v.c+j];
  return["weighted value of key "+name("k",i[0])+" for query "+name("q",i[1])+", number "+(j+1)+"\n"+
    B(x)+"\u00d7"+B(t)+" = "+N(seen(i[1],i[0])?x*t:0),[["weights",i[1],i[0]],["values",i[0],j]]];
}
function places(t){
  var R=t.dataset.rows,C=t.dataset.cols,f=function(s,k){return s?+s.split(" ")[k]:k;};
  var h=t.querySelector("thead")?1:0,l=t.querySelector("tbody th")?1:0;
  return function(td){return[f(R,td.parentNode.rowIndex-h),f(C,td.cellIndex-l)];};
}
function clear(){
  marked.forEach(function(e){e.classList.remove("pa-from","pa-here");});marked=[];
  if(tip){tip.remove();tip=null;}
}
function show(n,i,j,at,here,area){
  var q=at.dataset.q===undefined?null:+at.dataset.q,e,r;
  if(n==="weighted_values")i=[i,q];
  else if(q!==null)i=q;
  e=about(n,i,j);clear();
  tip=document.createElement("div");tip.className="pa-tip";tip.setAttribute("role","status");
  tip.textContent=e[0];area.appendChild(tip);
  e[1].forEach(function(s){
    areas.forEach(function(a){a.querySelectorAll("table[data-m='"+s[0]+"']").forEach(function(t){
      var p=places(t),z=t.dataset.q===undefined?null:+t.dataset.q;
      t.querySelectorAll("td").forEach(function(td){
        var c=p(td),y=D.column?[c[1],c[0]]:c;
        if(z!==null)y[0]=z;
        if((s[1]<0||s[1]===y[0])&&(s[2]<0||s[2]===y[1])&&c[0]>=0&&c[1]>=0){td.classList.add("pa-from");marked.push(td);}
      });
    });});
  });
  if(here){here.classList.add("pa-here");marked.push(here);r=here.getBoundingClientRect();}
  return r;
}
function put(x,y){
  var w=tip.offsetWidth,h=tip.offsetHeight;
  tip.style.left=Math.max(4,Math.min(x,window.innerWidth-w-8))+"px";
  tip.style.top=(y+h+8>window.innerHeight?Math.max(4,y-h-40):y)+"px";
}
function over(ev){
  var td=ev.target.closest?ev.target.closest("td,img"):null,area=ev.currentTarget,t,c,r,m;
  if(!td||!area.contains(td)){clear();return;}
  if(td.tagName==="IMG"){
    m=td.dataset.n.split(" ");r=td.getBoundingClientRect();
    c=[Math.floor((ev.clientY-r.top)/r.height*m[0]),Math.floor((ev.clientX-r.left)/r.width*m[1])];
    c=[Math.max(0,Math.min(c[0],m[0]-1)),Math.max(0,Math.min(c[1],m[1]-1))];
    if(D.column)c.reverse();
    show("weights",c[0],c[1],td,null,area);put(ev.clientX+12,ev.clientY+16);return;
  }
  t=td.closest("table");c=places(t)(td);
  if(c[0]<0||c[1]<0){clear();return;}
  if(D.column)c.reverse();
  r=show(t.dataset.m,c[0],c[1],t,td,area);put(r.left,r.bottom+8);
}
areas.forEach(function(a){
  a.addEventListener("mouseover",over);a.addEventListener("click",over);
  a.addEventListener("mousemove",function(ev){if(ev.target.tagName==="IMG")over(ev);});
  a.addEventListener("mouseleave",clear);
});
};
""".strip()


def save_page(fragment: str, path: str | os.PathLike[str]) -> None:
    """Write a whole page around a fragment of HTML."""
    Path(path).write_text(_page_of(fragment), encoding="utf-8")


def _page_of(fragment: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        "<title>Attention, step by step</title>\n"
        "<style>body{margin:0 auto;max-width:1140px}@media(prefers-color-scheme:dark){body{background:#16181c}}"
        f"</style>\n</head>\n<body>\n{fragment}\n</body>\n</html>\n"
    )
