#!/bin/sh
echo "$*" >>"$NOTES/calls"
case $1 in
build) cat >/dev/null ;;
create) echo container ;;
cp)
    case " $LEAVES " in *" ${2#container:/} "*) ;; *) exit 1 ;; esac
    echo "#!/bin/sh" >"$3"
    chmod +x "$3"
    ;;
esac
