#!/usr/bin/env bash
# Links the resources of the app and of its libraries with aapt2, writes R.java for each package, and tells Robolectric where
# they are.
set -euo pipefail
app=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=$app/target libraries=$app/../aars/target/unpacked
rm -rf "$target/generated" "$target/compiled"
# Assets are what `pocketbert ship` writes: a fresh clone has none.
mkdir -p "$target/generated" "$target/compiled" "$target/robolectric/com/android/tools" "$app/src/main/assets"
# The jar's own zip confuses aapt2: it wants a fresh one of the two files that it reads.
(cd "$target/framework-resources" && rm -f ../framework.apk && zip -q0 ../framework.apk resources.arsc AndroidManifest.xml)
packages='' linked=()
for library in "$libraries"/*/; do
  if [ -d "$library/res" ]; then
    compiled="$target/compiled/$(basename "$library").zip"
    aapt2 compile --dir "$library/res" -o "$compiled"
    linked+=(-R "$compiled")
  fi
  package=$(grep -oE 'package="[^"]+"' "$library/AndroidManifest.xml" | head -1 | cut -d'"' -f2)
  case ":$packages:" in *":$package:"*) ;; *) packages=${packages:+$packages:}$package ;; esac
done
# As Gradle merges it: package and versions come in, and what is marked goes out.
said() { sed -nE "s/^ *$1 = \"?([^\"]+)\"?$/\1/p" "$app/build.gradle.kts"; }
sdk="<uses-sdk android:minSdkVersion=\"$(said minSdk)\" android:targetSdkVersion=\"$(said targetSdk)\" \/>"
versions="android:versionCode=\"$(said versionCode)\" android:versionName=\"$(said versionName)\""
sed -e '/tools:node="remove"/d' -e "s/^<manifest /&package=\"$(said namespace)\" $versions /" -e "s/^    <application /    $sdk\n&/" \
  "$app/src/main/AndroidManifest.xml" >"$target/AndroidManifest.xml"
aapt2 compile --dir "$app/src/main/res" -o "$target/compiled/app.zip"
aapt2 link -o "$target/resources.apk" -I "$target/framework.apk" --manifest "$target/AndroidManifest.xml" \
  -A "$app/src/main/assets" --java "$target/generated" --auto-add-overlay --extra-packages "$packages" "${linked[@]}" \
  -R "$target/compiled/app.zip" --proguard "$target/manifest.pro"
cat >"$target/robolectric/com/android/tools/test_config.properties" <<PROPERTIES
android_merged_manifest=$target/AndroidManifest.xml
android_merged_assets=$app/src/main/assets
android_resource_apk=$target/resources.apk
android_custom_package=pocketbert.app
PROPERTIES
