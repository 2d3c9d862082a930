# Touches include/config/SYMBOL for each symbol that is not as it was (scripts/kconfig/confdata.c).
mkdir -p include/config
touch include/config/auto.conf
grep '^CONFIG_' .config | sort >include/config/new
for symbol in $(sort include/config/auto.conf include/config/new | uniq -u |
    sed 's/^CONFIG_//; s/=.*//' | sort -u); do
    touch "include/config/$symbol"
done
mv include/config/new include/config/auto.conf
