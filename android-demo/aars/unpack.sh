#!/usr/bin/env bash
# Unpacks each AAR below TARGET/aars into TARGET/unpacked, and its classes into TARGET/classes. Does nothing where it has
# done it already.
set -euo pipefail
target=$1
done_before="$target/unpacked/.done"
if [ -e "$done_before" ] && [ -z "$(find "$target/aars" -name '*.aar' -newer "$done_before")" ]; then exit 0; fi
rm -rf "$target/unpacked"
mkdir -p "$target/classes" "$target/unpacked"
for aar in "$target"/aars/*.aar; do
  folder="$target/unpacked/$(basename "$aar" .aar)"
  unzip -qo "$aar" -d "$folder"
  # Some hold resources alone; unzip ends with 11 where an archive has nothing but the manifest that is left out.
  if [ -f "$folder/classes.jar" ]; then
    unzip -qo "$folder/classes.jar" -d "$target/classes" -x META-INF/MANIFEST.MF || [ $? -eq 11 ]
  fi
done
touch "$done_before"
