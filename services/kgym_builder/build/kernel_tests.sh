kunit=$1 selftests=$2 place=$3 slow=$4
mkdir -p usr/include
for folder in include/uapi include/generated/uapi arch/x86/include/uapi \
    arch/x86/include/generated/uapi; do
    [ ! -d $folder ] || cp -rL --no-preserve=mode $folder/. usr/include
done
find usr/include -name '*.h' -exec sed -i -E '
    /^#include <linux\/compiler(_types)?\.h>/d
    s/\<(__user|__force|__iomem|__attribute_const__)\>//g
    s/\<__packed\>/__attribute__((packed))/g
    s/\<asm( volatile)?\(/__asm__\1(/g
    s/^(#(ifndef|define) +)_UAPI/\1/' {} +
program() (
    if [ "$1" = "$kunit" ]; then
        printf '#!/bin/sh\nexec cat /sys/kernel/debug/kunit/%s/results\n' "$2" >"/out/$3"
        exit
    fi
    cd "$selftests/$1" 2>/dev/null || { echo "this source has no such folder"; exit 1; }
    case $2 in
    *.sh) exec cp -L --no-preserve=mode -- "$2" "/out/$3" ;;
    esac
    timeout -k 5 60 make CC="gcc -static -D__EXPORTED_HEADERS__" OUTPUT="$PWD" \
        KHDR_INCLUDES="-isystem $place/usr/include" \
        USERCFLAGS="-fno-sanitize=all -Wno-error" "$PWD/$2" ||
        { [ $? != 124 ] || echo "$slow"; exit 1; }
    readelf -lW "$2" | grep -q INTERP && { echo "it is not linked statically"; exit 1; }
    strip -o "/out/$3.new" "$2" && exec mv "/out/$3.new" "/out/$3"
)
while read -r folder file number; do
    program "$folder" "$file" "$number" </dev/null >"/out/$number.log" 2>&1
done
